//! The generated protocol types; the files in `proto/` are their documentation.

#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated code"
)]

/// Frames between a dispatcher and its workers.
pub mod worker {
    tonic::include_proto!("fencepost.worker.v1");
}

/// Calls for producers that do not write to PostgreSQL themselves.
pub mod producer {
    tonic::include_proto!("fencepost.producer.v1");
}
