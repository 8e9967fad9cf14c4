//! The protocols: types generated from the files in `proto/`, which are their documentation, and the worker protocol
//! in JSON.

pub mod json;

/// The descriptors of both protocols, for reflection.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("descriptors");

/// Frames between a dispatcher and its workers.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated code"
)]
pub mod worker {
    tonic::include_proto!("fencepost.worker.v1");
}

/// Calls for producers that do not write to PostgreSQL themselves.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated code"
)]
pub mod producer {
    tonic::include_proto!("fencepost.producer.v1");
}
