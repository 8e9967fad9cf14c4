//! The watchdog: ends deliveries whose time is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::hub::Hub;
use super::in_flight::Limits;
use super::reports::{end, tell_to_stop};
use crate::domain::outcome::Outcome;

/// How exact timeouts are. A look costs a walk over what is in flight.
const TICK: Duration = Duration::from_millis(100);

/// Watches until the term ends.
pub async fn run(hub: Arc<Hub>) {
    let limits = Limits {
        accept: hub.settings.accept_timeout,
        reconnect: hub.settings.reconnect_grace,
        cancel: hub.settings.cancel_grace,
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = hub.ended.clone();
    while ended.run_until_cancelled(ticks.tick()).await.is_some() {
        let overdue = hub.in_flight.overdue(limits, Instant::now());
        let mut reports = Vec::with_capacity(overdue.len());
        for (delivery, outcome) in overdue {
            let task = delivery.token.id;
            match &outcome {
                Outcome::Ignored => {
                    tracing::warn!(
                        task,
                        worker = delivery.worker.worker_id,
                        "the worker ignores the cancel: the task ends as cancelled, and its slot stays taken until the worker answers or goes"
                    );
                    hub.in_flight.show_stuck(&delivery.token);
                }
                Outcome::ConnectionLost { .. } => {
                    tracing::warn!(
                        task,
                        worker = delivery.worker.worker_id,
                        "the worker is gone and did not come back in time"
                    );
                }
                _ => {
                    tracing::warn!(
                        task,
                        worker = delivery.worker.worker_id,
                        ?outcome,
                        "the delivery is over its time"
                    );
                    tell_to_stop(
                        &hub,
                        delivery.token,
                        delivery.session,
                        "The delivery is over its time.",
                    );
                }
            }
            reports.extend(end(&hub, delivery, outcome));
        }
        hub.settler.report(reports);
    }
}
