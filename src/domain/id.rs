//! Names of things: numbers that the database gives out, and the token that names one delivery.

use std::fmt;
use std::str::FromStr;

/// A task: a time-ordered number made by the database. In JSON it is a string, since it passes 2^53.
pub type TaskId = i64;
/// One start of a replica.
pub type DispatcherId = i64;
/// Stands for no replica, where a move names the owner of a row that must have none.
pub const NOBODY: DispatcherId = 0;
/// An interned (namespace, task queue, task type, node).
pub type RouteId = i32;

/// Names one delivery of one task in every report about it. Opaque on the wire: `id.epoch.fence` in ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// The task.
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
    /// [`BadToken`] for anything but three decimal numbers joined by dots.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadToken> {
        std::str::from_utf8(bytes).map_err(|_| BadToken)?.parse()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.id, self.epoch, self.fence)
    }
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let mut parts = text.split('.');
        let mut part = || {
            parts
                .next()
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
                .ok_or(BadToken)
        };
        let token = Self {
            id: part()?.parse().map_err(|_| BadToken)?,
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
        ] {
            assert_eq!(text.parse::<Token>(), Err(BadToken), "{text}");
        }
        assert_eq!(Token::from_bytes(b"\xff.1.2"), Err(BadToken));
    }
}
