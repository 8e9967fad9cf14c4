//! Concurrency keys that nobody else is sure to look at: those that rows ask for, once these are due, and, by a walk, those
//! that a replica owed a look when it died.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::GenericClient;

use super::walk::Walk;
use crate::dispatch::{DATABASE_DEADLINE, Hub, Keys, settler};
use crate::domain::id::KeyHash;
use crate::store::keys::Look;
use crate::store::{Error, keys, upkeep};

/// Longest time between two looks for what is due.
const TICK: Duration = Duration::from_secs(1);
/// Shortest time between two looks: one serves all that came meanwhile.
const REST: Duration = Duration::from_millis(20);
/// Rows in one look.
const LOOKS: i32 = 500;
/// Keys in one step of the walk: a few index probes each, so a step takes some 10 ms.
const STEP: i32 = 500;

/// Looks for what is due until the term ends.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    ended.run_until_cancelled(look_on(&hub)).await;
}

async fn look_on(hub: &Hub) {
    let (mut wait, mut after) = (TICK, None);
    loop {
        // What begins to wait on every replica at the same time is done by one after the other.
        let jittered = wait.mul_f64(0.8 + 0.2 * fastrand::f64());
        tokio::select! {
            () = tokio::time::sleep(jittered) => {}
            () = hub.wakes.keys_due() => tokio::time::sleep(REST.mul_f64(fastrand::f64())).await,
        }
        (wait, after) = look(hub, after).await.unwrap_or_else(|error| {
            settler::said(&error, "concurrency keys are looked for again");
            (TICK, None)
        });
    }
}

/// One look; answers how long to wait for the next one, and behind which row that is to begin: rows whose keys somebody
/// keeps stay, and those behind them are not to wait for that.
async fn look(hub: &Hub, after: Option<Look>) -> Result<(Duration, Option<Look>), Error> {
    if hub.settler.keys().is_full() {
        return Ok((REST, after));
    }
    let (due, next) = hub
        .pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { keys::find_looks(client, after, LOOKS).await })
        })
        .await?;
    let is_full = i32::try_from(due.len()).is_ok_and(|found| found >= LOOKS);
    let last = due.last().copied().filter(|_| is_full);
    hub.settler.keys().answer(due);
    let wait = next.map_or(TICK, |next| next.clamp(REST, TICK));
    Ok((if is_full { REST } else { wait }, last))
}

/// What one step of the walk found.
#[derive(Debug)]
pub(super) struct Walked {
    /// The last key that was looked at; none at the end of the round.
    last: Option<KeyHash>,
    with_room: Vec<KeyHash>,
    /// When a replica died last.
    died_at: Option<i64>,
}

/// Looks at the keys after this one that tasks wait for.
pub(super) async fn walk(
    client: &impl GenericClient,
    after: Option<KeyHash>,
) -> Result<Walked, Error> {
    // Before the look, which then is newer than the death.
    let died_at = upkeep::find_last_death(client).await?;
    let from = after.map_or(KeyHash::MIN, |after| after.saturating_add(1));
    let walked = keys::walk(client, from, STEP).await?;
    let is_full = i32::try_from(walked.len()).is_ok_and(|found| found >= STEP);
    Ok(Walked {
        last: walked.last().map(|(key, _)| *key).filter(|_| is_full),
        with_room: walked
            .into_iter()
            .filter_map(|(key, has_room)| has_room.then_some(key))
            .collect(),
        died_at,
    })
}

impl Walked {
    /// Hands on what was found. Answers whether the next step is to come at once.
    pub(super) fn take_up(self, walk: &mut Walk, keys: &Keys) -> bool {
        let goes_on = walk.step(self.last, self.died_at);
        keys.look_at(self.with_room);
        goes_on
    }
}
