//! The sweep: claims what free slots can take, and has it delivered.
//!
//! A sweep never claims what it cannot place: without a free slot it sends no statement. It learns which lanes
//! have work from wakes and, at least once a poll interval, from a scan over the claim index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::deliver;
use super::direct::{self, Waiting};
use super::fitness::BootTime;
use super::hub::{DATABASE_DEADLINE, Hub};
use super::lanes::Lanes;
use super::settler::{self, Report};
use crate::domain::id::TaskId;
use crate::domain::settlement::{Move, Settlement};
use crate::domain::task::Claim;
use crate::store::{self, claim, dispatchers, routes};

/// Sweeps in a row that found work before the replica says that it no longer sleeps: a flag that flips with every
/// task would cost two commits a task.
const BUSY_SWEEPS: u32 = 8;
/// Waits after the database failed.
const RETRY_WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Shortest time between two looks at the whole claim index.
const SCAN_PAUSE: Duration = Duration::from_millis(5);
/// Such looks take at most one part in this many of the time.
const SCAN_SHARE: u32 = 10;

/// What one look came to.
enum Found {
    /// So many tasks were claimed: there may be more.
    Work(usize),
    /// Nothing is due that somebody here could take.
    Nothing,
    /// No slot is free, or no work may be started: no look was taken.
    NoDemand,
}

struct Sweeper {
    hub: Arc<Hub>,
    lanes: Lanes,
    /// When the whole claim index is looked at next.
    poll_at: Instant,
    /// When such a look may be taken at the earliest.
    scan_from: Instant,
    /// The last one found due rows, which hide when the next row of their lane is due.
    due_seen: bool,
    sleeping: bool,
    busy: u32,
    fleet: watch::Receiver<()>,
}

/// Sweeps until the term ends. Errors of the database are waited out.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    let sweeper = Sweeper {
        fleet: hub.fleet.changes(),
        hub,
        lanes: Lanes::default(),
        poll_at: Instant::now(),
        scan_from: Instant::now(),
        due_seen: false,
        sleeping: false,
        busy: 0,
    };
    ended.run_until_cancelled(sweeper.sweep_all()).await;
}

impl Sweeper {
    async fn sweep_all(mut self) {
        let mut retry = RETRY_WAITS.0;
        loop {
            match self.turn().await {
                Ok(()) => retry = RETRY_WAITS.0,
                Err(error) => {
                    settler::said(&error, "the sweep is tried again");
                    self.sleeping = false;
                    self.poll_at = Instant::now();
                    tokio::time::sleep(retry.mul_f64(0.5 + fastrand::f64())).await;
                    retry = (retry * 2).min(RETRY_WAITS.1);
                }
            }
        }
    }

    /// One look and, where it came to nothing, one wait.
    async fn turn(&mut self) -> Result<(), store::Error> {
        self.hub.settler.accepting().await;
        self.fleet.mark_unchanged();
        let news = self.gather();
        match self.sweep().await? {
            Found::Work(_) => {
                self.busy = self.busy.saturating_add(1);
                if self.busy == BUSY_SWEEPS {
                    self.set_sleeping(false).await?;
                }
                return Ok(());
            }
            Found::NoDemand => {
                // Only a freed slot, a worker or a heartbeat can change that; each of them wakes.
                let later = Instant::now() + self.hub.settings.poll;
                self.wait(later).await;
                return Ok(());
            }
            // News that brought nothing: the rows are taken, or due a little later. The scan tells, also what is due
            // behind rows that it found last time and that are taken now.
            Found::Nothing
                if (news || (self.busy > 0 && self.due_seen)) && self.scan_from < self.poll_at =>
            {
                self.busy = 0;
                self.poll_at = self.scan_from;
                return Ok(());
            }
            Found::Nothing => {
                self.busy = 0;
                if self.hub.settings.listen && !self.sleeping {
                    // What was committed before the flag was seen sends no notification: look once more.
                    self.set_sleeping(true).await?;
                    self.poll_at = Instant::now();
                    return Ok(());
                }
            }
        }
        let until = self.poll_at;
        self.wait(until).await;
        Ok(())
    }

    /// Takes up what has come up. True: some lane has news.
    fn gather(&mut self) -> bool {
        let pending = self.hub.wakes.take();
        let now = Instant::now();
        if pending.everything {
            self.poll_at = now;
        }
        for (route, back) in &pending.routes {
            self.lanes.note_route(*route, *back, now);
        }
        !pending.routes.is_empty()
    }

    /// Waits for news, but no longer than `until` and than what rests here.
    async fn wait(&mut self, until: Instant) {
        let (hub, now) = (&self.hub, Instant::now());
        let rested = [hub.fleet.next_rested(now), self.lanes.next_rested(now)];
        let until = rested.into_iter().flatten().fold(until, Instant::min);
        tokio::select! {
            () = hub.wakes.wait() => {}
            _ = self.fleet.changed() => {}
            () = tokio::time::sleep(until.saturating_duration_since(now)) => {}
        }
    }

    /// Looks once. Callers that wait for a slot get theirs before and after, and leave what is free in between.
    async fn sweep(&mut self) -> Result<Found, store::Error> {
        let hub = Arc::clone(&self.hub);
        direct::serve(&hub);
        hub.direct.turns().look_begins();
        let found = self.claim().await;
        let waiting = match &found {
            Ok(Found::Work(claimed)) => Waiting::Claimed(*claimed),
            Ok(Found::NoDemand) if self.may_have_work() => Waiting::Unseen,
            Ok(Found::Nothing | Found::NoDemand) | Err(_) => Waiting::Nobody,
        };
        hub.direct.turns().look_ended(waiting);
        direct::serve(&hub);
        found
    }

    /// Whether a look would find rows, as far as is known without one.
    fn may_have_work(&self) -> bool {
        Instant::now() >= self.poll_at || !self.lanes.routes().is_empty()
    }

    /// Claims once and delivers.
    async fn claim(&mut self) -> Result<Found, store::Error> {
        let hub = Arc::clone(&self.hub);
        let started = BootTime::now();
        let demand = hub.fleet.demand(Instant::now());
        if demand.is_empty() || hub.is_draining() || !hub.fitness.allows(started) {
            return Ok(Found::NoDemand);
        }
        if Instant::now() >= self.poll_at {
            self.scan().await?;
        }
        let known = hub.routes.get(&hub.pool, self.lanes.routes()).await?;
        let targets: deliver::Targets<'_> = known
            .iter()
            .map(|(id, route)| (*id, (route, hub.nodes(route))))
            .collect();
        let mut request = self.lanes.plan(
            &demand,
            |id| {
                targets
                    .get(&id)
                    .map(|(route, nodes)| (route.as_ref(), *nodes))
            },
            hub.settings.batch,
            Instant::now(),
        );
        if request.lanes.is_empty() {
            return Ok(Found::Nothing);
        }
        request.sweep = hub.next_sweep();
        let sweep = request.sweep;
        let (dispatcher, deadlines, asked) =
            (hub.dispatcher, hub.settings.deadlines(), request.clone());
        let (claimed, bodies) = hub
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move {
                    let claimed = claim::claim(client, dispatcher, &asked, deadlines).await?;
                    let ids: Vec<TaskId> =
                        claimed.claims.iter().map(|claim| claim.token.id).collect();
                    let bodies = if ids.is_empty() {
                        Ok(Vec::new())
                    } else {
                        claim::read_bodies(client, &ids).await
                    };
                    // The claims stand, whether or not their bodies could be read.
                    Ok((claimed, bodies))
                })
            })
            .await
            .inspect_err(|_| hub.give_up(sweep))?;
        self.lanes.learn(&request, &claimed, Instant::now());
        if claimed.claims.is_empty() {
            return Ok(Found::Nothing);
        }
        let count = claimed.claims.len();
        tracing::debug!(sweep, claims = count, "claimed");
        match bodies {
            Ok(bodies) => {
                let bodies = bodies.into_iter().map(|body| (body.id, body)).collect();
                let unplaced = deliver::deliver(&hub, claimed.claims, bodies, &targets, started);
                self.lanes.rest(&unplaced, Instant::now());
            }
            Err(error) => {
                self.put_back(&claimed.claims);
                return Err(error);
            }
        }
        Ok(Found::Work(count))
    }

    /// The settler keeps at it until the database is back.
    fn put_back(&self, claims: &[Claim]) {
        let release = |claim: &Claim| Report {
            token: claim.token,
            settlement: Settlement::Return {
                how: Move::Release,
                delay: None,
                error: None,
            },
            owner: Some(self.hub.dispatcher),
            worker: None,
            reply: None,
        };
        self.hub
            .settler
            .report(claims.iter().map(release).collect());
    }

    /// Looks at the whole claim index, and sets the time of the next such look: a poll interval from now, or when
    /// the next row is due, but never so soon that the looks themselves become the load.
    async fn scan(&mut self) -> Result<(), store::Error> {
        let started = Instant::now();
        let due = self
            .hub
            .pool
            .run(DATABASE_DEADLINE, |client| {
                Box::pin(async move { routes::find_due(client).await })
            })
            .await?;
        let now = Instant::now();
        self.due_seen = due.iter().any(|lane| lane.due_in.is_zero());
        let poll = self.jittered_poll();
        let next = self.lanes.note_due(&due, now).unwrap_or(poll);
        let pause = ((now - started) * SCAN_SHARE).clamp(SCAN_PAUSE, poll);
        self.scan_from = now + pause;
        self.poll_at = now + next.clamp(pause, poll);
        Ok(())
    }

    fn jittered_poll(&self) -> Duration {
        self.hub
            .settings
            .poll
            .mul_f64(0.75 + 0.25 * fastrand::f64())
    }

    async fn set_sleeping(&mut self, sleeping: bool) -> Result<(), store::Error> {
        if self.sleeping == sleeping {
            return Ok(());
        }
        let dispatcher = self.hub.dispatcher;
        self.hub
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(
                    async move { dispatchers::set_sleeping(client, dispatcher, sleeping).await },
                )
            })
            .await?;
        self.sleeping = sleeping;
        Ok(())
    }
}
