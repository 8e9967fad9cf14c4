//! Names of things: numbers that the database gives out, and the token that names one delivery.

use std::fmt;
use std::str::FromStr;

/// A task: a time-ordered number made by the database. In JSON it is a string, since it passes 2^53.
pub type TaskId = i64;
/// A workflow, over all its runs.
pub type WorkflowId = i64;
/// One run of one workflow, unique over all of them.
pub type RunId = i64;
/// What stands for a concurrency key in its namespace. Two keys that share one share a line.
pub type KeyHash = i64;
/// One start of a replica.
pub type DispatcherId = i64;
/// Stands for no replica, where a move names the owner of a row that must have none.
pub const NOBODY: DispatcherId = 0;
/// An interned namespace.
pub type NamespaceId = i32;
/// An interned (namespace, task queue, task type, node).
pub type RouteId = i32;

/// Names one delivery of one task in every report about it. Opaque on the wire: `id.epoch.fence` in ASCII, with a `d`
/// before the number of a direct request, which the database has never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// The task; below zero for a direct request.
    pub id: TaskId,
    /// Grows when outstanding deliveries lose their authority.
    pub epoch: i32,
    /// Counts deliveries; grows at every claim.
    pub fence: i32,
}

/// The text is not a token that a task was delivered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a completion token")]
pub struct BadToken;

impl Token {
    /// Reads a token from the wire.
    ///
    /// # Errors
    /// [`BadToken`] for anything but three decimal numbers joined by dots, the first perhaps behind a `d`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadToken> {
        std::str::from_utf8(bytes).map_err(|_| BadToken)?.parse()
    }

    /// The token of a direct request: its number within a term, and how often it has been delivered. It names the
    /// term too, so that it means nothing to another replica or a later term.
    #[must_use]
    pub fn direct(term: DispatcherId, request: u64, delivery: i32) -> Self {
        Self {
            id: i64::try_from(request).map_or(i64::MIN + 1, |request| -request),
            // Of two terms that live at the same time, one would have to be 2^31 starts older.
            epoch: i32::try_from(term & i64::from(i32::MAX)).unwrap_or_default(),
            fence: delivery,
        }
    }

    /// Whether it names a direct request, which is in no table.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.id < 0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_direct() { "d" } else { "" };
        let id = self.id.unsigned_abs();
        write!(f, "{mark}{id}.{}.{}", self.epoch, self.fence)
    }
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let (direct, text) = match text.strip_prefix('d') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut parts = text.split('.');
        let mut part = || {
            parts
                .next()
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
                .ok_or(BadToken)
        };
        let id: TaskId = part()?.parse().map_err(|_| BadToken)?;
        if direct && id == 0 {
            return Err(BadToken);
        }
        let token = Self {
            id: if direct { -id } else { id },
            epoch: part()?.parse().map_err(|_| BadToken)?,
            fence: part()?.parse().map_err(|_| BadToken)?,
        };
        if parts.next().is_some() {
            Err(BadToken)
        } else {
            Ok(token)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_wire() {
        let token = Token {
            id: i64::MAX,
            epoch: 3,
            fence: 17,
        };
        assert_eq!(Token::from_bytes(token.to_string().as_bytes()), Ok(token));
    }

    #[test]
    fn a_direct_token_is_never_that_of_a_task() {
        let token = Token::direct((1 << 40) + 7, 5, 1);
        assert_eq!(token.to_string(), "d5.7.1");
        assert_eq!("d5.7.1".parse(), Ok(token));
        assert!(token.is_direct());
        assert_ne!(Token::direct(8, 5, 1), token, "another term");
        assert!(!"5.7.1".parse::<Token>().unwrap().is_direct());
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "+1.2.3",
            "1.-2.3",
            "1.2.x",
            "99999999999999999999.1.1",
            "1..3",
            "d",
            "d0.1.1",
            "d-1.1.1",
            "-1.1.1",
            "dd1.1.1",
            "d9223372036854775808.1.1",
        ] {
            assert_eq!(text.parse::<Token>(), Err(BadToken), "{text}");
        }
        assert_eq!(Token::from_bytes(b"\xff.1.2"), Err(BadToken));
    }
}
