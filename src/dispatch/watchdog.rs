//! The watchdog: ends deliveries whose time is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::hub::Hub;
use super::in_flight::{Delivery, Limits, Origin};
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
            named(&delivery).in_scope(|| tell(&hub, &delivery, &outcome));
            reports.extend(end(&hub, delivery, outcome));
        }
        hub.settler.report(reports);
    }
}

/// What the lines about a delivery have in common.
fn named(delivery: &Delivery) -> tracing::Span {
    let attempt = match delivery.origin {
        Origin::Durable { attempt, .. } => Some(attempt.saturating_add(1)),
        Origin::Direct { .. } => None,
    };
    tracing::warn_span!(
        "delivery",
        task = delivery.token.id,
        queue = delivery.route.task_queue,
        r#type = delivery.route.task_type,
        worker = delivery.worker.worker_id,
        attempt,
        fence = delivery.token.fence,
    )
}

/// Says what is over, and tells the worker where it may still be at it.
fn tell(hub: &Hub, delivery: &Delivery, outcome: &Outcome) {
    match outcome {
        Outcome::Ignored => {
            tracing::warn!(
                "the worker ignores the cancel: the task ends as cancelled, and its slot stays taken until the worker answers or goes"
            );
            hub.in_flight.show_stuck(&delivery.token);
        }
        Outcome::ConnectionLost { .. } => {
            tracing::warn!("the worker is gone and did not come back in time");
        }
        _ => {
            tracing::warn!(?outcome, "the delivery is over its time");
            let reason = "The delivery is over its time.";
            tell_to_stop(hub, delivery.token, delivery.session, reason);
        }
    }
}
