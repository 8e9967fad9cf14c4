//! What the tests share: a server for this process, a database for each test, and waiting for events.

mod cluster;
mod container;
mod database;
mod eventually;
pub mod plan;
mod producers;
pub mod queue;
pub mod scripted_dispatcher;

pub use database::TestDb;
pub use eventually::eventually;
pub use producers::Producers;
pub use queue::Queue;
