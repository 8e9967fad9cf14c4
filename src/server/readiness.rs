//! Whether this replica is fit for traffic, kept for whoever asks.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Replica;
use crate::api::Readiness;

/// Tells `/readyz` what is missing.
pub(super) async fn keep(
    replica: Arc<Replica>,
    readiness: watch::Sender<Readiness>,
    stop: CancellationToken,
) {
    let (mut hub, mut health, mut migrated) = (
        replica.hub.subscribe(),
        replica.health.subscribe(),
        replica.migrated.subscribe(),
    );
    loop {
        let mut reasons = Vec::new();
        if !*health.borrow_and_update() {
            reasons.push("The database does not answer.".to_owned());
        }
        if !*migrated.borrow_and_update() {
            reasons.push(
                "The database has no schema of fencepost, or an older one: run fencepost migrate."
                    .to_owned(),
            );
        }
        let current = hub.borrow_and_update().clone();
        let mut draining = current.as_ref().map(|hub| hub.draining.subscribe());
        match draining
            .as_mut()
            .map(|draining| *draining.borrow_and_update())
        {
            None => reasons.push("This replica has not registered yet.".to_owned()),
            Some(true) => reasons.push("This replica is shutting down.".to_owned()),
            Some(false) => {}
        }
        readiness.send_replace(Readiness {
            ready: reasons.is_empty(),
            reasons,
        });
        let drain_changed = async {
            match draining.as_mut() {
                Some(draining) => draining.changed().await,
                None => std::future::pending().await,
            }
        };
        let changed = tokio::select! {
            changed = hub.changed() => changed,
            changed = health.changed() => changed,
            changed = migrated.changed() => changed,
            changed = drain_changed => changed,
            () = stop.cancelled() => return,
        };
        if changed.is_err() {
            return;
        }
    }
}
