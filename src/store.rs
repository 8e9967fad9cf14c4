//! The only module that speaks SQL: one typed function for each file in `sql/`.

use std::time::Duration;

pub mod bench;
pub mod cancel;
pub mod checkup;
pub mod claim;
pub mod dead_letters;
pub mod demo;
pub mod dispatchers;
pub mod enqueue;
mod error;
pub mod events;
pub mod fleet;
pub mod history;
pub mod keys;
pub mod letter_events;
pub mod listen;
pub mod migrate;
pub mod pauses;
mod pool;
pub mod queues;
pub mod quotas;
pub mod rates;
pub mod redrives;
pub mod retention;
pub mod routes;
pub mod runs;
mod settings;
pub mod settle;
pub mod tasks;
mod tls;
pub mod totals;
pub mod unserved;
pub mod upkeep;
pub mod workers;
pub mod workflows;

pub use error::{CLASSES, Error, Fault, Refusal};
pub use pool::{Client, ENDS, Errand, Listener, Pool, Usage, Work};
pub use settings::Settings;

/// A duration as the statements take it.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Text that PostgreSQL can store: it knows no NUL.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
