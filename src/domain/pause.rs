//! Pauses: what operators keep from starting.

use chrono::{DateTime, SecondsFormat, Utc};

use super::route::Route;

/// Which tasks are meant: what is not named is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Tenant.
    pub namespace: Option<String>,
    /// Pool of workers.
    pub task_queue: Option<String>,
    /// What the worker must know how to do.
    pub task_type: Option<String>,
    /// The node that tasks are pinned to.
    pub node: Option<String>,
}

impl Address {
    /// Whether tasks of this route are meant. SQL has the same rule in `fencepost.paused_route`; this one is for what
    /// never comes to the tables, and for telling which of several pauses binds.
    #[must_use]
    pub fn covers(&self, route: &Route) -> bool {
        let fits =
            |named: &Option<String>, own: &str| named.as_ref().is_none_or(|name| name == own);
        fits(&self.namespace, &route.namespace)
            && fits(&self.task_queue, &route.task_queue)
            && fits(&self.task_type, &route.task_type)
            && fits(&self.node, &route.node)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            ("namespace", &self.namespace),
            ("queue", &self.task_queue),
            ("type", &self.task_type),
            ("node", &self.node),
        ];
        let mut comma = "";
        for (what, name) in parts {
            if let Some(name) = name {
                write!(f, "{comma}{what} {name}")?;
                comma = ", ";
            }
        }
        if comma.is_empty() {
            f.write_str("everything")?;
        }
        Ok(())
    }
}

/// What an operator has paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// What does not start.
    pub address: Address,
    /// Why, where they said so.
    pub reason: String,
    /// By whom, where they said so.
    pub by: String,
    /// Since when.
    pub since: DateTime<Utc>,
    /// What runs there is asked to stop.
    pub cancel_running: bool,
}

impl Pause {
    /// What, by whom, since when, and why, without a full stop.
    #[must_use]
    pub fn sentence(&self) -> String {
        let since = self.since.to_rfc3339_opts(SecondsFormat::Millis, true);
        let by = match self.by.as_str() {
            "" => String::new(),
            by => format!(" by {by}"),
        };
        let reason = match self.reason.as_str() {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        format!("{}, paused{by} since {since}{reason}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(names: [&str; 4]) -> Address {
        let [namespace, task_queue, task_type, node] =
            names.map(|name| (!name.is_empty()).then(|| name.to_owned()));
        Address {
            namespace,
            task_queue,
            task_type,
            node,
        }
    }

    #[test]
    fn an_address_covers_what_it_does_not_contradict() {
        let route = |node: &str| Route {
            namespace: "n".into(),
            task_queue: "q".into(),
            task_type: "t".into(),
            node: node.into(),
            ..Route::default()
        };
        for (names, unpinned, pinned) in [
            (["", "", "", ""], true, true),
            (["n", "", "", ""], true, true),
            (["", "q", "", ""], true, true),
            (["", "", "t", ""], true, true),
            (["", "", "", "a"], false, true),
            (["n", "q", "t", "a"], false, true),
            (["n", "q", "u", ""], false, false),
            (["m", "", "", ""], false, false),
            (["", "", "", "b"], false, false),
        ] {
            let address = address(names);
            assert_eq!(address.covers(&route("")), unpinned, "{address}");
            assert_eq!(address.covers(&route("a")), pinned, "{address}");
        }
    }

    #[test]
    fn an_address_names_what_it_means() {
        assert_eq!(address(["", "", "", ""]).to_string(), "everything");
        let all = address(["n", "q", "t", "l"]).to_string();
        assert_eq!(all, "namespace n, queue q, type t, node l");
        assert_eq!(address(["", "q", "", ""]).to_string(), "queue q");
    }
}
