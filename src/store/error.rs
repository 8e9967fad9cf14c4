//! What the database answered instead of a result, by SQLSTATE and never by message text.

use std::error::Error as _;
use std::fmt;
use std::io;

use deadpool_postgres::PoolError;

/// Why a call to the database has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The input is not valid: the schema's own functions say so. Never worth a retry.
    #[error("{0}")]
    Refused(Refusal),
    /// No answer, for now: the server is down, out of room, read-only, or slower than the deadline. What
    /// was sent may have been committed nevertheless.
    #[error("the database is unavailable: {0}")]
    Unavailable(Fault),
    /// Another transaction was in the way and nothing was written: a deadlock, a lock that was not
    /// granted in time, a serialisation failure.
    #[error("the database reports a conflict: {0}")]
    Conflict(Fault),
    /// The schema is missing or older than this program.
    #[error(
        "the database lacks fencepost's schema, or has an older one (run `fencepost migrate`): {0}"
    )]
    NotMigrated(Fault),
    /// The settings make no connection.
    #[error("database settings: {0}")]
    Settings(String),
    /// Anything else: a defect, or rights that are missing.
    #[error("the database refused a statement: {0}")]
    Internal(Fault),
}

/// Invalid input, as the schema's functions raise it (SQLSTATE `FP0nn`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The SQLSTATE, such as `FP001`.
    pub code: String,
    /// The stable name of the rule, such as `invalid_name`.
    pub slug: String,
    /// The field at fault, when there is one.
    pub field: Option<String>,
    /// A sentence for people.
    pub message: String,
}

/// A failure in the words of the server or the driver, without the values that PostgreSQL puts in DETAIL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// None when the failure did not come from the server.
    pub sqlstate: Option<String>,
    /// What it said.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sqlstate {
            Some(code) => write!(f, "{} (SQLSTATE {code})", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// A statement that ran into `statement_timeout` or was cancelled; its connection is still good.
const QUERY_CANCELED: &str = "57014";

/// Classes of SQLSTATE that are counted apart. `none`: no server answered. `FP`: the schema's own rules refused the input.
pub const CLASSES: [&str; 15] = [
    "none", "08", "22", "23", "25", "28", "40", "42", "53", "54", "55", "57", "FP", "XX", "other",
];

impl Error {
    /// Whether the same call may succeed later. Its outcome can be unknown, so the call must be one that
    /// can be repeated.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Conflict(_))
    }

    /// Whether the values that were sent are at fault (data exceptions, violated constraints, limits of the
    /// program): the same call fails every time.
    #[must_use]
    pub fn is_data(&self) -> bool {
        let classes = ["22", "23", "54"];
        match self {
            Self::Refused(_) => true,
            Self::Internal(Fault {
                sqlstate: Some(code),
                ..
            }) => classes.iter().any(|class| code.starts_with(class)),
            _ => false,
        }
    }

    /// The first two letters of its SQLSTATE, as far as they are worth telling apart: one of [`CLASSES`].
    #[must_use]
    pub fn class(&self) -> &'static str {
        let code = match self {
            Self::Refused(refusal) => Some(refusal.code.as_str()),
            Self::Unavailable(fault)
            | Self::Conflict(fault)
            | Self::NotMigrated(fault)
            | Self::Internal(fault) => fault.sqlstate.as_deref(),
            Self::Settings(_) => None,
        };
        let Some(code) = code else { return "none" };
        let known = CLASSES.iter().find(|class| code.starts_with(**class));
        known.copied().unwrap_or("other")
    }

    /// Whether the connection must not be used again.
    pub(super) fn breaks_connection(&self) -> bool {
        matches!(self, Self::Unavailable(fault) if fault.sqlstate.as_deref() != Some(QUERY_CANCELED))
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable(Fault {
            sqlstate: None,
            message: message.into(),
        })
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::Internal(Fault {
            sqlstate: None,
            message: message.into(),
        })
    }

    /// Sorts a server's error; refusals are made where DETAIL and COLUMN are at hand.
    pub(super) fn from_server(sqlstate: &str, message: &str) -> Self {
        let fault = Fault {
            sqlstate: Some(sqlstate.to_owned()),
            message: message.to_owned(),
        };
        match sqlstate {
            "40001" | "40P01" | "55P03" => Self::Conflict(fault),
            // Our statements are fixed and tested against the schema, so a name that the server does not
            // know (schema, table, function, column) is one that a migration is yet to make.
            "3F000" | "42P01" | "42883" | "42703" => Self::NotMigrated(fault),
            // Cancelled; transaction and idle time-outs; a standby, which is the wrong node.
            QUERY_CANCELED | "25P03" | "25P04" | "25006" => Self::Unavailable(fault),
            // Connection exceptions, resources, shutdown and start-up of the server.
            code if ["08", "53", "57P"]
                .iter()
                .any(|class| code.starts_with(class)) =>
            {
                Self::Unavailable(fault)
            }
            _ => Self::Internal(fault),
        }
    }

    fn from_driver(error: &tokio_postgres::Error) -> Self {
        let message = chain(error);
        let broken = error
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
            // What can't be encoded is our own doing, and would fail on any connection.
            .is_some_and(|io| io.kind() != io::ErrorKind::InvalidInput);
        if broken || error.is_closed() {
            Self::unavailable(message)
        } else {
            Self::internal(message)
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(server) = error.as_db_error() else {
            return Self::from_driver(&error);
        };
        let code = server.code().code();
        if !code.starts_with("FP0") {
            return Self::from_server(code, server.message());
        }
        Self::Refused(Refusal {
            code: code.to_owned(),
            slug: server.detail().unwrap_or_default().to_owned(),
            field: server
                .column()
                .filter(|field| !field.is_empty())
                .map(str::to_owned),
            message: server.message().to_owned(),
        })
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            PoolError::Timeout(_) | PoolError::Closed => Self::unavailable(error.to_string()),
            PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
                Self::internal(error.to_string())
            }
        }
    }
}

/// The error and its sources, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
