//! What the tests share: a server for this process, a database for each test, waiting for events, and the two ends
//! of every wire: real replicas, scripted workers and dispatchers, a proxy in between.

pub mod browser;
mod cluster;
#[cfg(feature = "otel")]
pub mod collector;
mod container;
mod database;
mod eventually;
pub mod exposition;
pub mod letters;
mod operator;
pub mod plan;
mod producers;
pub mod queue;
mod replica;
pub mod scripted_dispatcher;
pub mod scripted_worker;
pub mod tasks;
mod tcp_proxy;

pub use browser::Browser;
#[cfg(feature = "otel")]
pub use collector::Collector;
pub use database::TestDb;
pub use eventually::eventually;
pub use operator::{Operator, fencepost};
pub use producers::Producers;
pub use queue::Queue;
pub use replica::Replica;
pub use scripted_worker::ScriptedWorker;
pub use tcp_proxy::TcpProxy;
