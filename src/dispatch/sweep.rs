//! The sweep: claims what free slots can take, and has it delivered.
//!
//! A sweep never claims what it cannot place: without a free slot it sends no statement. It learns which lanes
//! have work from wakes and, at least once a poll interval, from a scan over the claim index.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deliver;
use super::fitness::BootTime;
use super::hub::{DATABASE_DEADLINE, Hub};
use super::lanes::Lanes;
use super::settler::Report;
use crate::domain::settlement::{Move, Settlement};
use crate::domain::task::{Body, Claim};
use crate::store::{self, claim, dispatchers, routes};

/// Sweeps in a row that found work before the replica says that it no longer sleeps: a flag that flips with every
/// task would cost two commits a task.
const BUSY_SWEEPS: u32 = 8;
/// Waits after the database failed.
const RETRY_WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What one look came to.
enum Found {
    /// Tasks were claimed: there may be more.
    Work,
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
    sleeping: bool,
    busy: u32,
}

/// Sweeps until the term ends. Errors of the database are waited out.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    let sweeper = Sweeper {
        hub,
        lanes: Lanes::default(),
        poll_at: Instant::now(),
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
                    tracing::debug!(%error, "the sweep is tried again");
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
        let news = self.gather();
        match self.sweep().await? {
            Found::Work => {
                self.busy = self.busy.saturating_add(1);
                if self.busy == BUSY_SWEEPS {
                    self.set_sleeping(false).await?;
                }
                return Ok(());
            }
            Found::NoDemand => {}
            // News that brought nothing: the rows are taken, or due a little later. The scan tells.
            Found::Nothing if news && Instant::now() < self.poll_at => {
                self.poll_at = Instant::now();
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
        self.wait().await;
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

    async fn wait(&self) {
        let hub = &self.hub;
        let rested = hub.fleet.next_rested(Instant::now());
        let until = rested.map_or(self.poll_at, |rested| rested.min(self.poll_at));
        tokio::select! {
            () = hub.wakes.wait() => {}
            () = hub.fleet.changed() => {}
            // At least a millisecond, so that a time that has passed is no busy loop.
            () = tokio::time::sleep(until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))) => {}
        }
    }

    /// Claims once and delivers.
    async fn sweep(&mut self) -> Result<Found, store::Error> {
        let hub = Arc::clone(&self.hub);
        let started = BootTime::now();
        let demand = hub.fleet.demand(Instant::now());
        if demand.is_empty() || hub.is_draining() || !hub.fitness.allows(started) {
            self.poll_at = self.poll_at.max(Instant::now() + self.jittered_poll() / 2);
            return Ok(Found::NoDemand);
        }
        if Instant::now() >= self.poll_at {
            self.scan().await?;
        }
        let known = hub.routes.get(&hub.pool, self.lanes.routes()).await?;
        let mut request = self.lanes.plan(
            &demand,
            |id| known.get(&id).map(Arc::as_ref),
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
        let claimed = hub
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move { claim::claim(client, dispatcher, &asked, deadlines).await })
            })
            .await
            .inspect_err(|_| hub.give_up(sweep))?;
        self.lanes.learn(&request, &claimed, Instant::now());
        if claimed.claims.is_empty() {
            return Ok(Found::Nothing);
        }
        tracing::debug!(sweep, claims = claimed.claims.len(), "claimed");
        match self.read_bodies(&claimed.claims).await {
            Ok(bodies) => deliver::deliver(&hub, claimed.claims, bodies, &known, started).await,
            Err(error) => {
                self.put_back(&claimed.claims).await;
                return Err(error);
            }
        }
        Ok(Found::Work)
    }

    async fn read_bodies(&self, claims: &[Claim]) -> Result<HashMap<i64, Body>, store::Error> {
        let ids: Vec<i64> = claims.iter().map(|claim| claim.token.id).collect();
        let bodies = self
            .hub
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move { claim::read_bodies(client, &ids).await })
            })
            .await?;
        Ok(bodies.into_iter().map(|body| (body.id, body)).collect())
    }

    /// The settler keeps at it until the database is back.
    async fn put_back(&self, claims: &[Claim]) {
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
            .report(claims.iter().map(release).collect())
            .await;
    }

    /// Looks at the whole claim index, and sets the time of the next such look: a poll interval from now, or when
    /// the next row is due.
    async fn scan(&mut self) -> Result<(), store::Error> {
        let due = self
            .hub
            .pool
            .run(DATABASE_DEADLINE, |client| {
                Box::pin(async move { routes::find_due(client).await })
            })
            .await?;
        let now = Instant::now();
        let next = self.lanes.note_due(&due, now);
        let poll = self.jittered_poll();
        self.poll_at = now + next.map_or(poll, |next| next.min(poll));
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
