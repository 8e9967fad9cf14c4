//! Tells other replicas that tasks have ended, while somebody waits for that at one of them.
//!
//! A notification takes a lock that serialises commits, so none is sent while nobody waits, and few while somebody does.
//! All of it is advice: whoever waits polls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::dispatch::{DATABASE_DEADLINE, Hub};
use crate::store::{Client, Error, Work, dispatchers};

/// At most one notification in this time, whatever ends in it.
const RATE: Duration = Duration::from_millis(20);
/// Waits come in rows: the flag stays for so long after the last.
const LINGER: Duration = Duration::from_secs(5);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until the term ends. `awaiting` says whether anybody waits here.
pub async fn run(hub: Arc<Hub>, awaiting: watch::Receiver<bool>) {
    let ended = hub.ended.clone();
    let both = async { tokio::join!(tell_waits(&hub, awaiting), tell_ends(&hub)) };
    ended.run_until_cancelled(both).await;
}

/// Keeps the flag in this replica's row.
async fn tell_waits(hub: &Hub, mut awaiting: watch::Receiver<bool>) {
    loop {
        if awaiting.wait_for(|awaiting| *awaiting).await.is_err() {
            return std::future::pending().await;
        }
        set(hub, true).await;
        loop {
            if awaiting.wait_for(|awaiting| !*awaiting).await.is_err() {
                return std::future::pending().await;
            }
            let again = awaiting.wait_for(|awaiting| *awaiting);
            if timeout(LINGER, again).await.is_err() {
                break;
            }
        }
        set(hub, false).await;
    }
}

async fn set(hub: &Hub, awaiting: bool) {
    let own = hub.dispatcher;
    loop {
        let set = run_on(hub, move |client| {
            Box::pin(dispatchers::set_awaiting(client, own, awaiting))
        });
        match set.await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "the others were not told who waits"),
        }
        sleep(RETRY).await;
    }
}

/// Says that tasks have ended here, while somebody waits elsewhere.
async fn tell_ends(hub: &Hub) {
    let mut settled = hub.settler.settled();
    let own = hub.dispatcher;
    while settled.changed().await.is_ok() {
        if !hub.awaited_elsewhere.holds() {
            continue;
        }
        let told = run_on(hub, move |client| {
            Box::pin(dispatchers::announce_ends(client, own))
        });
        if let Err(error) = told.await {
            tracing::debug!(%error, "the others were not told of ends");
        }
        sleep(RATE).await;
    }
    std::future::pending::<()>().await;
}

async fn run_on<T, F>(hub: &Hub, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut Client) -> Work<'c, T> + Send + 'static,
{
    hub.pool.run(DATABASE_DEADLINE, work).await
}
