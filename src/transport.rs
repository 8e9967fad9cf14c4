//! The doors for workers, and what they share: the way in, admission, and the life of a session.

pub mod admission;
pub mod entry;
pub mod grpc;
pub mod session;
pub mod websocket;
