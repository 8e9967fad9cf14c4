//! Tells other replicas of quotas that are free and that nobody here has a use for.
//!
//! The replica that ends a task looks first: with a free slot and more to do it uses the quota itself, and then nobody
//! else has to be woken. It is advice: whoever misses it looks again by itself.

use std::sync::Arc;

use super::hub::{DATABASE_DEADLINE, Hub};
use super::in_flight::{Delivery, Origin};
use crate::fleet::Slot;
use crate::store::quotas;

impl Delivery {
    /// The slot of a task under a quota, which goes with the report of its end.
    pub(super) fn keep_slot(&mut self) -> Option<Arc<Slot>> {
        let keep = self.route.has_quota() && matches!(self.origin, Origin::Durable { .. });
        self.slot.take_if(|_| keep).map(Arc::new)
    }
}

/// Passes on until the term ends.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    ended.run_until_cancelled(pass_on(&hub)).await;
}

async fn pass_on(hub: &Hub) {
    loop {
        let (routes, own) = (hub.wakes.passed_on().await, hub.dispatcher);
        let told = hub.pool.run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { quotas::wake_held_back(client, &routes, own).await })
        });
        if let Err(error) = told.await {
            tracing::debug!(%error, "other replicas were not told of a quota that is free");
        }
    }
}
