//! The only module that speaks SQL: one typed function for each file in `sql/`.

pub mod enqueue;
mod error;
pub mod migrate;
mod pool;
mod settings;
pub mod tasks;
mod tls;

pub use error::{Error, Fault, Refusal};
pub use pool::{Client, Listener, Pool, Work};
pub use settings::Settings;
