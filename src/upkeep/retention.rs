//! What is kept no longer: days of history, results, dispatch keys, dead letters, workflows.
//!
//! One replica at a time does it, under a lease. Days leave as whole partitions; the rest goes in small batches, each a
//! transaction of its own, so nothing waits long for any of it, and a crash leaves nothing that the next round does
//! not find. Each kind has a breaker: one that fails or is slow rests and does not hold up the others.

mod breaker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use breaker::{Breaker, Turn};

use crate::dispatch::{DATABASE_DEADLINE, Hub};
use crate::domain::id::TaskId;
use crate::store::{Client, Error, Work, retention};

/// Rows of one batch: it locks few for a short time, and a full one is followed by the next after [`PAUSE`].
const BATCH: i32 = 1000;
/// Between two batches, so that the hot statements have the database most of the time.
const PAUSE: Duration = Duration::from_millis(100);
/// Steps of partitions in one round: a day has six.
const STEPS: usize = 60;
/// Orders for workers that have not been seen are kept for so many days, as nodes are.
const ORDER_DAYS: i32 = 90;
/// A round is over well before, so that the lease is renewed in time.
const LEASE_RESERVE: Duration = Duration::from_secs(15);

/// How long things are kept. None is for ever, or as long as what they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Between two rounds.
    pub interval: Duration,
    /// Tasks, outcomes and failures, after the end of a day's last task.
    pub history: Option<Duration>,
    /// The bytes of results, after the task's end.
    pub results: Option<Duration>,
    /// Dead letters, after their death.
    pub dead_letters: Option<Duration>,
    /// Runs of workflows, after their end.
    pub workflows: Option<Duration>,
}

/// What goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Days,
    Results,
    Keys,
    Buckets,
    DeadLetters,
    Redrives,
    Workflows,
    Orders,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Days => "history",
            Self::Results => "results",
            Self::Keys => "dispatch keys",
            Self::Buckets => "full buckets of concurrency keys",
            Self::DeadLetters => "dead letters",
            Self::Redrives => "redrives",
            Self::Workflows => "workflows",
            Self::Orders => "orders for workers",
        }
    }
}

/// One kind and how it fares.
#[derive(Debug)]
struct Line {
    kind: Kind,
    breaker: Breaker,
    /// Its last batch was full: it goes on right away, alone but for its like.
    more: bool,
}

/// What this replica remembers from batch to batch.
#[derive(Debug)]
struct Keeper {
    settings: Settings,
    lines: Vec<Line>,
    /// When the last round over all kinds began.
    all_at: Option<Instant>,
    /// Where the walk over dispatch keys has come to; a hint.
    keys_after: TaskId,
}

/// Does the rounds that are this replica's until the term ends.
pub async fn run(hub: Arc<Hub>, settings: Settings) {
    let mut keeper = Keeper::new(settings);
    let ended = hub.ended.clone();
    let mut wait = settings.interval;
    loop {
        let jittered = wait.mul_f64(0.8 + 0.4 * fastrand::f64());
        if ended
            .run_until_cancelled(tokio::time::sleep(jittered))
            .await
            .is_none()
        {
            return;
        }
        let more = !hub.is_draining() && keeper.is_ours(&hub).await && keeper.round(&hub).await;
        wait = if more { PAUSE } else { settings.interval };
    }
}

impl Keeper {
    fn new(settings: Settings) -> Self {
        let kinds = [
            Kind::Days,
            Kind::Results,
            Kind::Keys,
            Kind::Buckets,
            Kind::DeadLetters,
            Kind::Redrives,
            Kind::Workflows,
            Kind::Orders,
        ];
        let lines = kinds.into_iter().map(|kind| Line {
            kind,
            breaker: Breaker::default(),
            more: false,
        });
        Self {
            settings,
            lines: lines.collect(),
            all_at: None,
            keys_after: 0,
        }
    }

    async fn is_ours(&self, hub: &Hub) -> bool {
        let (own, time) = (hub.dispatcher, self.settings.interval * 2 + LEASE_RESERVE);
        let taken = run_on(hub, move |client| {
            Box::pin(retention::take_lease(client, "retention", own, time))
        });
        taken.await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the lease of retention was not taken");
            false
        })
    }

    /// A batch of each kind, or, well within the interval after that, of those whose last one was full. True: there is
    /// more to do right away.
    async fn round(&mut self, hub: &Hub) -> bool {
        let now = Instant::now();
        let recent = |at: Instant| now - at < self.settings.interval / 2;
        let rest = self.all_at.is_some_and(recent);
        if !rest {
            self.all_at = Some(now);
        }
        for index in 0..self.lines.len() {
            let Some(kind) = self.ready(index, rest) else {
                continue;
            };
            let begun = Instant::now();
            let done = self.batch(hub, kind).await;
            if let Some(line) = self.lines.get_mut(index) {
                line.more = done.as_ref().is_ok_and(|full| *full);
                line.judge(done, begun);
            }
        }
        self.lines.iter().any(|line| line.goes_on(Instant::now()))
    }

    fn ready(&self, index: usize, rest: bool) -> Option<Kind> {
        let (line, now) = (self.lines.get(index)?, Instant::now());
        let ready = if rest {
            line.goes_on(now)
        } else {
            line.breaker.allows(now)
        };
        ready.then_some(line.kind)
    }

    /// One batch. True: it was full.
    async fn batch(&mut self, hub: &Hub, kind: Kind) -> Result<bool, Error> {
        let settings = self.settings;
        match kind {
            Kind::Days => drop_days(hub, settings.history).await,
            Kind::Results => {
                let Some(keep) = settings.results else {
                    return Ok(false);
                };
                let looked = run_on(hub, move |client| {
                    Box::pin(retention::expire_results(client, keep, BATCH))
                });
                Ok(looked.await? > 0)
            }
            Kind::Keys => {
                let after = self.keys_after;
                let keys = run_on(hub, move |client| {
                    Box::pin(retention::expire_keys(client, after, BATCH))
                })
                .await?;
                let full = keys.looked >= i64::from(BATCH);
                // From the beginning again once the end is reached.
                self.keys_after = keys.last.filter(|_| full).unwrap_or(0);
                Ok(full)
            }
            Kind::Buckets => {
                let gone = run_on(hub, |client| {
                    Box::pin(retention::expire_buckets(client, BATCH))
                });
                Ok(gone.await? >= BATCH.unsigned_abs().into())
            }
            Kind::DeadLetters => {
                let Some(keep) = settings.dead_letters else {
                    return Ok(false);
                };
                let gone = run_on(hub, move |client| {
                    Box::pin(retention::expire_dead_letters(client, keep, BATCH))
                });
                Ok(gone.await? >= BATCH.unsigned_abs().into())
            }
            Kind::Redrives => {
                // They say what became of letters, and mean nothing without them.
                let Some(keep) = settings.dead_letters else {
                    return Ok(false);
                };
                let gone = run_on(hub, move |client| {
                    Box::pin(retention::expire_redrives(client, keep, BATCH))
                });
                Ok(gone.await? >= i64::from(BATCH))
            }
            Kind::Workflows => {
                let Some(keep) = settings.workflows else {
                    return Ok(false);
                };
                let gone = run_on(hub, move |client| {
                    Box::pin(retention::expire_workflows(client, keep, BATCH))
                });
                Ok(gone.await? >= i64::from(BATCH))
            }
            Kind::Orders => {
                run_on(hub, move |client| {
                    Box::pin(retention::expire_orders(client, ORDER_DAYS))
                })
                .await?;
                Ok(false)
            }
        }
    }
}

impl Line {
    fn goes_on(&self, now: Instant) -> bool {
        self.more && self.breaker.allows(now)
    }

    /// Says once that this kind rests, and once that it is well again.
    fn judge(&mut self, done: Result<bool, Error>, begun: Instant) {
        let now = Instant::now();
        let what = self.kind.name();
        let turn = match &done {
            Ok(_) => self.breaker.done(now - begun, now),
            Err(_) => self.breaker.failed(now),
        };
        match (turn, done) {
            (Turn::Opened, Err(error)) => {
                tracing::warn!(what, %error, "retention can't go on with this; it is tried again by and by");
            }
            (Turn::Opened, Ok(_)) => tracing::warn!(
                what,
                took = ?(now - begun),
                "retention of this is slow; it rests between its batches"
            ),
            (Turn::Closed, _) => tracing::info!(what, "retention goes on with this"),
            (Turn::None, Err(error)) => {
                tracing::debug!(what, %error, "retention can't go on with this yet");
            }
            (Turn::None, Ok(_)) => {}
        }
    }
}

/// Takes the steps of days that are to go. A partition that somebody still uses ends the round: within the lock timeout,
/// and nobody has waited for it.
async fn drop_days(hub: &Hub, history: Option<Duration>) -> Result<bool, Error> {
    run_on(hub, |client| Box::pin(retention::note_days(client))).await?;
    for _ in 0..STEPS {
        let next = run_on(hub, move |client| {
            Box::pin(retention::next_step(client, history))
        });
        let Some(step) = next.await? else {
            return Ok(false);
        };
        let child = step.child.clone();
        let gone = run_on(hub, move |client| {
            Box::pin(async move { retention::take_step(client, &step).await })
        });
        if gone.await? {
            tracing::info!(partition = child, "a day has left history");
        }
    }
    Ok(true)
}

async fn run_on<T, F>(hub: &Hub, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut Client) -> Work<'c, T> + Send + 'static,
{
    hub.pool.run(DATABASE_DEADLINE, work).await
}
