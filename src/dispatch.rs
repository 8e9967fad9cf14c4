//! The heart: demand → claim → deliver → outcome → settle.
//!
//! | loop | runs | does |
//! |---|---|---|
//! | [`sweep`] | at a wake, a freed slot, a due time, at least once a poll interval | claims what free slots can take and delivers it |
//! | [`direct`] | at a freed slot, a worker, a request | hands the slots that are free to callers that wait |
//! | [`settler`] | as reports come in | writes them in batches, keeps them while the database is away, answers the workers |
//! | [`Runs`] | as members of workflows end | ends their runs, after the settle's commit, and cancels losers |
//! | [`freed`] | when a quota is free that nobody here has a use for | tells the replicas that it holds back |
//! | [`Keys`] | as tasks with concurrency keys end | lets the next ones of their keys go, after the settle's commit |
//! | [`watchdog`] | every 100 ms | ends deliveries that are not accepted, run too long, are silent or lost |
//! | [`reconcile`] | every few seconds | puts back what sweeps of unknown outcome had claimed after all |
//!
//! A session feeds [`reports`] with what its worker says. All loops of one term (one identity of this replica)
//! share a [`Hub`] and end with its token; the settler outlives terms, since a result counts whoever stores it.

pub mod counts;
pub mod deliver;
pub mod direct;
mod fitness;
pub mod freed;
mod hub;
mod in_flight;
mod keys;
mod lanes;
pub mod reconcile;
pub mod reports;
mod routes;
mod runs;
pub mod settler;
pub mod sweep;
mod wakes;
pub mod watchdog;

pub use fitness::{BootTime, Fitness};
pub use hub::{CurrentHub, DATABASE_DEADLINE, Hub, Settings};
pub use in_flight::{Delivery, InFlight, Origin};
pub use keys::Keys;
pub use runs::Runs;
pub use wakes::{Awaited, Wakes};
