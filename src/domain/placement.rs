//! On which nodes the tasks of a route may run. Placement steers the choice only: no row ever names it.

use std::collections::BTreeSet;

use serde::Deserialize;

/// Where a namespace wants its tasks to run. In JSON: `{"mode": "prefer", "nodes": ["a", "b"]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(tag = "mode", content = "nodes", rename_all = "snake_case")]
pub enum Placement {
    /// No wish.
    #[default]
    Anywhere,
    /// On these while a worker there is live on any replica; else anywhere.
    Prefer(BTreeSet<String>),
    /// On these and nowhere else.
    Require(BTreeSet<String>),
}

/// The nodes that may run a task now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes<'r> {
    /// Any worker.
    Any,
    /// Workers on this node.
    One(&'r str),
    /// Workers on these.
    Listed(&'r BTreeSet<String>),
    /// None: the task is pinned to a node that its namespace does not allow.
    PinConflict,
}

impl Placement {
    /// The nodes for a task that is pinned to `pin` (empty: not pinned). `preferred_live` tells whether a live worker
    /// on a preferred node, on any replica, could take it. A pin narrows and never widens: it wins against a
    /// preference and conflicts with a requirement that leaves it out.
    #[must_use]
    pub fn nodes<'r>(&'r self, pin: &'r str, preferred_live: bool) -> Nodes<'r> {
        match (pin, self) {
            ("", Self::Anywhere) => Nodes::Any,
            ("", Self::Prefer(_)) if !preferred_live => Nodes::Any,
            ("", Self::Prefer(nodes) | Self::Require(nodes)) => Nodes::Listed(nodes),
            (pin, Self::Require(nodes)) if !nodes.contains(pin) => Nodes::PinConflict,
            (pin, _) => Nodes::One(pin),
        }
    }
}

impl Nodes<'_> {
    /// Whether a worker on this node (empty: on none) may run the task.
    #[must_use]
    pub fn admit(&self, node: &str) -> bool {
        match self {
            Self::Any => true,
            Self::One(pin) => *pin == node,
            Self::Listed(nodes) => nodes.contains(node),
            Self::PinConflict => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Placement {
        serde_json::from_str(json).unwrap()
    }

    /// Rows: placement, pin, whether a preferred worker is live, and the answers for nodes a, b and none.
    #[test]
    fn the_table_of_placements() {
        let anywhere = read(r#"{"mode": "anywhere"}"#);
        let prefer = read(r#"{"mode": "prefer", "nodes": ["a"]}"#);
        let require = read(r#"{"mode": "require", "nodes": ["a"]}"#);
        let rows = [
            (&anywhere, "", false, [true, true, true]),
            (&anywhere, "b", false, [false, true, false]),
            (&prefer, "", true, [true, false, false]),
            (&prefer, "", false, [true, true, true]),
            (&prefer, "b", true, [false, true, false]),
            (&require, "", true, [true, false, false]),
            (&require, "", false, [true, false, false]),
            (&require, "a", false, [true, false, false]),
            (&require, "b", true, [false, false, false]),
        ];
        for (placement, pin, live, admitted) in rows {
            let nodes = placement.nodes(pin, live);
            assert_eq!(
                ["a", "b", ""].map(|node| nodes.admit(node)),
                admitted,
                "{placement:?} {pin:?} {live}"
            );
        }
    }
}
