//! Tells owners of their dead letters, after these have been stored: by NOTIFY, in batches of its own commits since a
//! notifying commit keeps all others waiting, and by webhooks. What is yet to be told stands in a small table, so a
//! crash costs a repetition at most, and nothing is left of it once it is told.

mod webhook;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::dispatch::settler;
use crate::dispatch::{DATABASE_DEADLINE, Hub};
use crate::domain::backoff::Backoff;
use crate::store::letter_events::{self, Event, Told};
use crate::store::{Error, Pool};
use webhook::Webhooks;

/// Notifications in one commit.
const NOTICES: i64 = 200;
/// Tries under way at once, and how many of these for one namespace: an owner that hangs holds up its own letters.
const FLIGHTS: usize = 64;
const EACH: usize = 4;
/// Nobody else tries an event for so long: longer than a try, so that only a crash leaves one to others.
const LEASE: Duration = Duration::from_secs(60);
/// Between two looks at least: where tasks die in numbers, one look serves many.
const GAP: Duration = Duration::from_millis(100);
/// The waits between tries, fully jittered.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    multiplier: 2.0,
    max: Duration::from_secs(30 * 60),
};
/// A letter that its owner's webhook has not taken by then is given up, and says so.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
const TRIES: i32 = 60;

/// Tells until the term ends. A try that is cut off by that is repeated by another replica.
pub async fn run(hub: Arc<Hub>, tick: Duration) {
    let ended = hub.ended.clone();
    ended.run_until_cancelled(tell_all(&hub, tick)).await;
}

async fn tell_all(hub: &Hub, tick: Duration) {
    let webhooks = Arc::new(Webhooks::new());
    let mut flights: JoinSet<(i32, Option<Duration>)> = JoinSet::new();
    let mut busy: HashMap<i32, usize> = HashMap::new();
    let mut look_at = Instant::now();
    let mut looked = look_at;
    loop {
        if Instant::now() >= look_at {
            looked = Instant::now();
            look_at = looked + tick.mul_f64(0.8 + 0.4 * fastrand::f64());
            match look(&hub.pool, &busy, flights.len()).await {
                Ok(events) => {
                    for event in events {
                        *busy.entry(event.namespace).or_default() += 1;
                        flights.spawn(tell(hub.pool.clone(), Arc::clone(&webhooks), event));
                    }
                }
                Err(error) => settler::said(&error, "owners of dead letters are told later"),
            }
        }
        tokio::select! {
            () = tokio::time::sleep_until(look_at) => {}
            () = hub.wakes.letter_due() => look_at = look_at.min(looked + GAP),
            Some(landed) = flights.join_next() => {
                // A flight that panicked is unwound into here; its namespace stays counted for this term.
                if let Ok((namespace, again)) = landed {
                    let left = busy.get(&namespace).map_or(0, |count| count.saturating_sub(1));
                    if left > 0 {
                        busy.insert(namespace, left);
                    } else {
                        busy.remove(&namespace);
                        // There may be more of the same.
                        look_at = look_at.min(Instant::now());
                    }
                    if let Some(delay) = again {
                        look_at = look_at.min(Instant::now() + delay);
                    }
                }
            }
        }
    }
}

/// Sends notifications, and takes webhook events as far as there is room.
async fn look(
    pool: &Pool,
    busy: &HashMap<i32, usize>,
    under_way: usize,
) -> Result<Vec<Event>, Error> {
    loop {
        let sent = pool
            .run(DATABASE_DEADLINE, |client| {
                Box::pin(async move { letter_events::send_notices(client, NOTICES).await })
            })
            .await?;
        if sent < NOTICES {
            break;
        }
    }
    let room = FLIGHTS.saturating_sub(under_way) / EACH;
    if room == 0 {
        return Ok(Vec::new());
    }
    let (each, room) = (
        i64::try_from(EACH).unwrap_or(1),
        i64::try_from(room).unwrap_or(1),
    );
    let busy: Vec<i32> = busy.keys().copied().collect();
    pool.run(DATABASE_DEADLINE, move |client| {
        Box::pin(async move { letter_events::claim(client, &busy, each, room, LEASE).await })
    })
    .await
}

/// One try; answers when the next is due, if there is one.
async fn tell(pool: Pool, webhooks: Arc<Webhooks>, event: Event) -> (i32, Option<Duration>) {
    let namespace = event.namespace;
    let (told, again) = match webhooks.post(&event).await {
        None => (Told::Moot, None),
        Some(Ok(judged)) => (Told::Taken(judged), None),
        Some(Err(error)) if event.tries >= TRIES || event.age >= LONGEST => {
            tracing::warn!(task = event.letter, tries = event.tries, %error, "an owner is not told of its dead letter");
            (Told::GivenUp(error), None)
        }
        Some(Err(error)) => {
            tracing::debug!(task = event.letter, tries = event.tries, %error, "an owner is told of its dead letter later");
            let tries = u32::try_from(event.tries - 1).unwrap_or(0);
            let delay = BACKOFF.delay(tries, fastrand::f64());
            (Told::Later(delay, error), Some(delay))
        }
    };
    let finished = pool
        .run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { letter_events::finish(client, &event, &told).await })
        })
        .await;
    if let Err(error) = finished {
        // The lease ends, and it is told again.
        settler::said(&error, "that an owner was told is not stored");
        return (namespace, Some(LEASE));
    }
    (namespace, again)
}
