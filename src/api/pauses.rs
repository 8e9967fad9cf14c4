//! Pausing and resuming: what operators keep from starting.

use serde::Serialize;
use utoipa::ToSchema;

use super::cancels::{CancelMatching, CancelReport};
use super::operators::time;
use super::page::{Listing, Window};
use super::{Error, State};
use crate::domain::pause::{Address, Pause};
use crate::store::cancel::Matching;
use crate::store::pauses::{self, NewPause};

/// Which tasks are meant: what is null is any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AddressView {
    #[schema(required)]
    namespace: Option<String>,
    #[schema(required)]
    task_queue: Option<String>,
    #[schema(required)]
    task_type: Option<String>,
    #[schema(required)]
    node: Option<String>,
}

impl From<Address> for AddressView {
    fn from(address: Address) -> Self {
        Self {
            namespace: address.namespace,
            task_queue: address.task_queue,
            task_type: address.task_type,
            node: address.node,
        }
    }
}

/// What an operator has paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PauseView {
    #[serde(flatten)]
    address: AddressView,
    /// The address for people.
    #[serde(skip)]
    pub name: String,
    /// By whom, where they said so.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: String,
    /// What runs there is asked to stop.
    pub cancel_running: bool,
}

impl From<Pause> for PauseView {
    fn from(pause: Pause) -> Self {
        Self {
            name: pause.address.to_string(),
            address: pause.address.into(),
            by: pause.by,
            reason: pause.reason,
            since: time(pause.since),
            cancel_running: pause.cancel_running,
        }
    }
}

/// What came of a pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PausedView {
    /// As it stands.
    #[serde(flatten)]
    pub pause: PauseView,
    /// False: this very address was paused already; who and why are replaced.
    pub created: bool,
    /// What was asked to stop so far. Replicas ask what was claimed meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<CancelReport>,
}

/// What came of a resumption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResumedView {
    #[serde(flatten)]
    address: AddressView,
    /// The address for people.
    #[serde(skip)]
    pub name: String,
    /// Since when it was paused.
    pub paused_since: String,
}

impl State {
    /// Keeps tasks of an address from starting, and asks what runs there to stop where that is wanted.
    pub async fn pause(&self, new: NewPause) -> Result<PausedView, Error> {
        let asked = new.clone();
        let paused = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move {
                let created = pauses::pause(client, &asked).await?;
                let all = pauses::read(client).await?;
                let stored = all.into_iter().find(|one| one.address == asked.address);
                Ok((created, stored))
            })
        });
        let (created, stored) = paused.await?;
        let stored = stored.ok_or_else(|| Error::new("FP-114", "it was resumed meanwhile."))?;
        let cancelled = if new.cancel_running {
            let Address {
                namespace,
                task_queue,
                task_type,
                node,
            } = new.address;
            let running = CancelMatching {
                matching: Matching {
                    namespace,
                    task_queue,
                    task_type,
                    node,
                    state: Some("running".to_owned()),
                    ..Matching::default()
                },
                reason: new.reason,
                ..CancelMatching::default()
            };
            Some(self.cancel_matching(running).await?)
        } else {
            None
        };
        Ok(PausedView {
            pause: stored.into(),
            created,
            cancelled,
        })
    }

    /// Ends the pause of exactly this address.
    pub async fn resume(&self, address: Address, everything: bool) -> Result<ResumedView, Error> {
        let asked = address.clone();
        let resumed = self.pool.run(self.limits.database, move |client| {
            Box::pin(async move { pauses::resume(client, &asked, everything).await })
        });
        Ok(ResumedView {
            paused_since: time(resumed.await?),
            name: address.to_string(),
            address: address.into(),
        })
    }

    /// What is paused, the widest first.
    pub async fn pauses(&self, window: Window) -> Result<Listing<PauseView>, Error> {
        let key = window.key::<5>()?;
        let found = self.pool.run(self.limits.database, |client| {
            Box::pin(async move { pauses::read(client).await })
        });
        // They are few, since people make them, and every replica reads them as a whole.
        let mut found = found.await?;
        found.sort_by_cached_key(|pause| place(&pause.address));
        found.retain(|pause| key.as_ref().is_none_or(|key| place(&pause.address) > *key));
        found.truncate(window.rows());
        let page = window.cut(found, |pause| place(&pause.address));
        Ok(page.map(PauseView::from))
    }
}

/// Where it stands in the list: how much it names, and what.
fn place(address: &Address) -> [String; 5] {
    let parts = [
        &address.namespace,
        &address.task_queue,
        &address.task_type,
        &address.node,
    ];
    let named = parts.iter().filter(|part| part.is_some()).count();
    let [namespace, queue, kind, node] = parts.map(|part| part.clone().unwrap_or_default());
    [named.to_string(), namespace, queue, kind, node]
}
