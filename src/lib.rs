//! fencepost: a durable task dispatcher on PostgreSQL.
//!
//! Applications commit tasks together with their own data; replicas claim them with
//! `for update skip locked` and push each one to a connected worker; results, retries and dead
//! letters are settled in SQL, fenced. See ARCHITECTURE.md for the picture and the reading order.

pub mod api;
pub mod cli;
pub mod config;
pub mod dispatch;
pub mod domain;
pub mod embedded;
pub mod fleet;
pub mod outbound;
pub mod proto;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod transport;
pub mod upkeep;
pub mod worker;
