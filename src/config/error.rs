//! What is wrong with the configuration.

use std::fmt;

/// One mistake and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file, environment variable or flag; `defaults` when the key is missing everywhere.
    pub origin: String,
    /// The key, such as `server.grpc`; empty when the whole source is at fault.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.origin, self.message)
        } else {
            write!(f, "{}: {} {}", self.origin, self.key, self.message)
        }
    }
}

/// Every mistake in the configuration, a line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Errors(
    /// In the order of the sections; never empty.
    pub Vec<Fault>,
);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration can't be used:")?;
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}
