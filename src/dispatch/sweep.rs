//! The sweep: claims what free slots can take, and has it delivered.
//!
//! A sweep never claims what it cannot place: without a free slot it looks, and claims nothing. It learns which lanes
//! have work from wakes and, at least once a poll interval, from a scan over the claim index.

mod pace;
mod scan;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use self::pace::BUSY_POLL;
use super::counts;
use super::deliver;
use super::direct::{self, Waiting};
use super::fitness::BootTime;
use super::hub::{DATABASE_DEADLINE, Hub};
use super::lanes::Lanes;
use super::settler;
use crate::domain::ageing::Ageing;
use crate::domain::id::{RouteId, TaskId};
use crate::store::{self, Errand, claim, dispatchers};

/// Sweeps in a row that found work before the replica says that it no longer sleeps: a flag that flips with every
/// task would cost two commits a task.
const BUSY_SWEEPS: u32 = 8;
/// A replica that a quota holds back stays so for a while, as the database has it: a flag that flips with every task
/// would cost two commits a task.
const HELD_BACK: Duration = Duration::from_secs(2);
/// Waits after the database failed.
const RETRY_WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What one look came to.
enum Found {
    /// So many tasks were claimed: there may be more.
    Work(usize),
    /// The lanes that were asked gave nothing; others may have work.
    Short,
    /// Nothing is due that somebody here could take.
    Nothing,
    /// No slot is free, or no work may be started: nothing was asked for.
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
    /// Where such a look goes on: there are more lanes than one statement looks for.
    scan_after: Option<(RouteId, i16)>,
    /// When the claim index was looked at last.
    scanned: Instant,
    /// That was not long ago, with every slot taken: one claim goes by what was seen, and the look that is due comes after.
    seen_ahead: bool,
    /// When a claim was last made or rehearsed.
    claimed: Instant,
    /// Some lane had news since the last look at the index.
    news: bool,
    /// What the database was told: that this replica sleeps, and that a quota holds it back.
    told: (bool, bool),
    /// A quota has held it back not long ago.
    held_until: Instant,
    busy: u32,
    /// When the last look began: what has rested since then is a reason for the next one.
    looked: Instant,
    fleet: watch::Receiver<()>,
}

/// Sweeps until the term ends. Errors of the database are waited out.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    let sweeper = Sweeper {
        fleet: hub.fleet.changes(),
        lanes: Lanes::new(Ageing::new(hub.settings.ageing_step)),
        hub,
        poll_at: Instant::now(),
        scan_from: Instant::now(),
        due_seen: false,
        scan_after: None,
        scanned: Instant::now(),
        seen_ahead: false,
        claimed: Instant::now(),
        news: false,
        told: (false, false),
        held_until: Instant::now(),
        busy: 0,
        looked: Instant::now(),
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
                    self.told = (false, false);
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
        self.gather().await?;
        let found = self.sweep().await?;
        self.tell_held_back().await?;
        match found {
            Found::Short => return Ok(()),
            Found::Work(_) => {
                self.news = false;
                self.busy = self.busy.saturating_add(1);
                if self.busy == BUSY_SWEEPS {
                    self.poll_at = self.poll_at.min(Instant::now() + BUSY_POLL);
                    self.tell(false).await?;
                }
                return Ok(());
            }
            Found::NoDemand => {
                self.look_ahead().await;
                // Only a freed slot, a worker or a heartbeat can change that; each of them wakes.
                let later = Instant::now() + self.hub.settings.poll;
                self.wait(later).await;
                return Ok(());
            }
            // News that brought nothing: the rows are taken, or due a little later. The scan tells, also what is due
            // behind rows that it found last time and that are taken now.
            Found::Nothing
                if (self.news || (self.busy > 0 && self.due_seen))
                    && self.scan_from < self.poll_at =>
            {
                self.news = false;
                self.busy = 0;
                self.poll_at = self.scan_from;
                return Ok(());
            }
            Found::Nothing => {
                self.busy = 0;
                if self.hub.settings.listen && self.tell(true).await? {
                    // What was committed before the flag was seen sends no notification: look once more.
                    self.poll_at = Instant::now();
                    return Ok(());
                }
            }
        }
        self.rehearse().await;
        let until = self.poll_at;
        self.wait(until).await;
        Ok(())
    }

    /// Takes up what has come up.
    async fn gather(&mut self) -> Result<(), store::Error> {
        let pending = self.hub.wakes.take();
        let now = Instant::now();
        if pending.everything || pending.settings {
            self.poll_at = now;
            self.seen_ahead = false;
        }
        if pending.everything {
            self.lanes.forget_pauses();
        }
        for (id, here) in &pending.freed {
            if let Some(route) = self.hub.routes.one(*id) {
                self.lanes.freed(route.namespace_id, *id, *here);
            }
        }
        for (route, back) in &pending.routes {
            self.news |= self.lanes.note_route(*route, *back, now) && !self.rests(*route, now);
        }
        if pending.settings {
            self.lanes.settings_changed();
            self.hub.routes.refresh(&self.hub.pool).await?;
        }
        Ok(())
    }

    /// Waits for news, but no longer than `until` and than what rested here at the last look.
    async fn wait(&mut self, until: Instant) {
        let (hub, now) = (&self.hub, Instant::now());
        let rested = [
            hub.fleet.next_rested(now),
            self.lanes.next_rested(self.looked),
        ];
        let until = rested.into_iter().flatten().fold(until, Instant::min);
        tokio::select! {
            () = hub.wakes.wait() => hub.telemetry.looks.news(),
            _ = self.fleet.changed() => hub.telemetry.looks.slot(),
            () = tokio::time::sleep(until.saturating_duration_since(now)) => hub.telemetry.looks.poll(),
        }
    }

    /// Looks once. Callers that wait for a slot get theirs before and after, and leave what is free in between.
    async fn sweep(&mut self) -> Result<Found, store::Error> {
        let hub = Arc::clone(&self.hub);
        direct::serve(&hub);
        hub.direct.turns().look_begins();
        let found = self.claim().await;
        // What rested when the look began was not looked at.
        hub.wakes.pass_on(self.lanes.left_over(self.looked));
        let waiting = match &found {
            Ok(Found::Work(claimed)) => Waiting::Claimed(*claimed),
            Ok(Found::NoDemand | Found::Short) if self.may_have_work() => Waiting::Unseen,
            Ok(Found::Nothing | Found::NoDemand | Found::Short) | Err(_) => Waiting::Nobody,
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
        self.looked = Instant::now();
        let demand = hub.fleet.demand(self.looked);
        if demand.is_empty() || hub.is_draining() || !hub.fitness.allows(started) {
            return Ok(Found::NoDemand);
        }
        let is_due = Instant::now() >= self.poll_at;
        let put_off = std::mem::take(&mut self.seen_ahead) && is_due;
        if is_due && !put_off {
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
            return Ok(if put_off {
                Found::Short
            } else {
                Found::Nothing
            });
        }
        request.sweep = hub.next_sweep();
        let sweep = request.sweep;
        let (dispatcher, deadlines) = (hub.dispatcher, hub.settings.deadlines());
        let asked_at = Instant::now();
        let (asked, claimed, bodies) = hub
            .pool
            .run_for(Errand::Claim, DATABASE_DEADLINE, move |client| {
                Box::pin(async move {
                    let (asked, claimed) =
                        claim::claim_within(client, dispatcher, request, deadlines).await?;
                    let ids: Vec<TaskId> =
                        claimed.claims.iter().map(|claim| claim.token.id).collect();
                    let bodies = if ids.is_empty() {
                        Ok(Vec::new())
                    } else {
                        claim::read_bodies(client, &ids).await
                    };
                    // The claims stand, whether or not their bodies could be read.
                    Ok((asked, claimed, bodies))
                })
            })
            .await
            .inspect_err(|_| hub.give_up(sweep))?;
        counts::claimed(&hub, &claimed.claims, asked_at.elapsed());
        self.claimed = asked_at;
        let learned = self.lanes.learn(&asked, &claimed, Instant::now());
        counts::learned(&hub, &learned);
        if claimed.claims.is_empty() {
            return Ok(Found::Short);
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
                // The settler keeps at it until the database is back.
                deliver::put_back(&hub, &claimed.claims);
                return Err(error);
            }
        }
        Ok(Found::Work(count))
    }

    /// Tells the database whether this replica sleeps and whether a quota holds it back, where that is news. True: it was
    /// told.
    async fn tell(&mut self, sleeping: bool) -> Result<bool, store::Error> {
        let held_back = self.is_held_back();
        if self.told == (sleeping, held_back) {
            return Ok(false);
        }
        let dispatcher = self.hub.dispatcher;
        self.hub
            .pool
            .run_for(Errand::Claim, DATABASE_DEADLINE, move |client| {
                Box::pin(async move {
                    dispatchers::set_sleeping(client, dispatcher, sleeping, held_back).await
                })
            })
            .await?;
        if held_back && !self.told.1 {
            // What was freed before the flag was seen is told to nobody: look once more.
            self.lanes.settings_changed();
        }
        self.told = (sleeping, held_back);
        Ok(true)
    }

    /// A quota may hold back a replica that has other work to do, and that never sleeps.
    async fn tell_held_back(&mut self) -> Result<(), store::Error> {
        if self.hub.settings.listen && self.is_held_back() != self.told.1 {
            self.tell(self.told.0).await?;
        }
        Ok(())
    }

    fn is_held_back(&mut self) -> bool {
        let now = Instant::now();
        if self.lanes.held_back(now) {
            self.held_until = now + HELD_BACK;
        }
        now < self.held_until
    }
}
