//! The doors for workers, and what they share: admission, and the life of a session.

pub mod admission;
pub mod grpc;
pub mod session;
