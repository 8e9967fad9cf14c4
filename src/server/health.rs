//! `grpc.health.v1` on the workers' door: every service serves while this replica is fit for traffic, as `/readyz` has it.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::pb::FILE_DESCRIPTOR_SET as HEALTH;
use tonic_health::server::HealthReporter;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

use crate::api::Readiness;
use crate::proto;

/// What a client may ask for; the empty name is the whole of the door.
const SERVICES: [&str; 3] = [
    "",
    "fencepost.producer.v1.ProducerService",
    "fencepost.worker.v1.WorkerService",
];

/// A reporter by which nothing serves yet.
pub(super) async fn reporter() -> HealthReporter {
    let reporter = HealthReporter::new();
    set(&reporter, ServingStatus::NotServing).await;
    reporter
}

/// Passes every change on. At the end whoever watches is let go, so that the door can close.
pub(super) async fn follow(
    mut reporter: HealthReporter,
    mut readiness: watch::Receiver<Readiness>,
    stop: CancellationToken,
) {
    let mut last = ServingStatus::NotServing;
    loop {
        let status = if readiness.borrow_and_update().ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        // Whoever watches is told of every set, changed or not.
        if std::mem::replace(&mut last, status) != status {
            set(&reporter, status).await;
        }
        let changed = tokio::select! {
            changed = readiness.changed() => changed,
            () = stop.cancelled() => break,
        };
        if changed.is_err() {
            break;
        }
    }
    for service in SERVICES {
        reporter.clear_service_status(service).await;
    }
}

async fn set(reporter: &HealthReporter, status: ServingStatus) {
    for service in SERVICES {
        reporter.set_service_status(service, status).await;
    }
}

/// `grpc.reflection.v1`: what this door speaks, for clients without the files of `proto/`.
pub(super) fn reflection() -> Option<ServerReflectionServer<impl ServerReflection>> {
    let built = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(HEALTH)
        .build_v1();
    match built {
        Ok(service) => Some(service),
        Err(error) => {
            tracing::error!(%error, "the gRPC door does without reflection");
            None
        }
    }
}
