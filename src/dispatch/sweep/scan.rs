//! Looks at the claim index as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::pace::pace;
use super::{BUSY_SWEEPS, Sweeper};
use crate::dispatch::fitness::BootTime;
use crate::dispatch::hub::DATABASE_DEADLINE;
use crate::domain::id::RouteId;
use crate::store::claim::ClaimRequest;
use crate::store::routes::{self, DueLane};
use crate::store::{self, Errand, claim, settle};

/// Lanes that one look takes in: some five milliseconds.
const SCAN_LANES: i32 = 1000;
/// So long after its last claim a replica that is about to wait goes through one that takes nothing.
const REHEARSE_AFTER: Duration = Duration::from_secs(2);
/// What it waits for an end of nothing.
const PATIENCE: Duration = Duration::from_millis(50);

impl Sweeper {
    /// A scan once a poll interval while every slot is taken, as an idle replica makes it, so that the slot that is freed
    /// finds its lanes known. Advice: what fails is left to the next claim.
    pub(super) async fn look_ahead(&mut self) {
        let (hub, now) = (Arc::clone(&self.hub), Instant::now());
        let due = now >= self.poll_at.max(self.scanned + hub.settings.poll);
        let may_claim = !hub.is_draining() && hub.fitness.allows(BootTime::now());
        let may_claim = may_claim && hub.fleet.strength(now).slots > 0;
        self.seen_ahead &= may_claim;
        if !due || !may_claim {
            return;
        }
        (self.scanned, self.seen_ahead) = (now, false);
        if let Err(error) = self.scan().await {
            tracing::debug!(%error, "nothing was seen ahead");
            return;
        }
        self.seen_ahead = self.due_seen;
        if let Err(error) = hub.routes.get(&hub.pool, self.lanes.routes()).await {
            tracing::debug!(%error, "routes were not read ahead");
        }
        self.rehearse().await;
    }

    /// Claims nothing and ends nothing, where that is long ago. After a pause a server process has lost its plans to newer
    /// statistics, and the memory that they are in to others; what comes next finds them at hand. Advice, too.
    pub(super) async fn rehearse(&mut self) {
        if self.claimed.elapsed() < REHEARSE_AFTER {
            return;
        }
        self.claimed = Instant::now();
        let (dispatcher, deadlines) = (self.hub.dispatcher, self.hub.settings.deadlines());
        let pool = &self.hub.pool;
        let claim = pool.run_for(Errand::Claim, DATABASE_DEADLINE, move |client| {
            Box::pin(async move {
                let nothing = ClaimRequest::default();
                claim::claim(client, dispatcher, &nothing, deadlines).await?;
                claim::read_bodies(client, &[]).await
            })
        });
        let end = pool.run_for(Errand::End, DATABASE_DEADLINE, |client| {
            Box::pin(async { settle::complete(client, &[]).await })
        });
        // Writers may have the connections for long: it goes on without us.
        let end = timeout(PATIENCE, end);
        if let (Err(error), _) = tokio::join!(claim, end) {
            tracing::debug!(%error, "a claim was not rehearsed");
        }
    }

    /// Looks at the claim index, and sets the time of the next such look: a poll interval from now, or when the next row
    /// is due, but never so soon that the looks themselves become the load. Of very many lanes it looks at a part, and
    /// goes on with the next part as soon as that is allowed.
    pub(super) async fn scan(&mut self) -> Result<(), store::Error> {
        let started = Instant::now();
        let after = self.scan_after;
        let page = self
            .hub
            .pool
            .run_for(Errand::Claim, DATABASE_DEADLINE, move |client| {
                Box::pin(async move { routes::find_due_from(client, after, SCAN_LANES).await })
            })
            .await?;
        self.hub.telemetry.claims.scanned();
        let now = Instant::now();
        self.scanned = now;
        let last = page.lanes.last();
        self.scan_after = last
            .filter(|_| page.more)
            .map(|lane| (lane.route, lane.priority));
        let open = |lane: &DueLane| lane.is_open() && !self.rests(lane.route, now);
        self.due_seen = page.lanes.iter().any(open);
        let next = self.lanes.note_due(&page, now);
        let next = if page.more {
            Some(Duration::ZERO)
        } else {
            next
        };
        let is_busy = self.busy >= BUSY_SWEEPS;
        let (pause, next) = pace(now - started, next, is_busy, self.jittered_poll());
        self.scan_from = now + pause;
        self.poll_at = now + next;
        Ok(())
    }

    /// Whether a quota or rate above this route rests: its rows are no reason to look.
    pub(super) fn rests(&self, route: RouteId, now: Instant) -> bool {
        let route = self.hub.routes.one(route);
        route.is_some_and(|route| self.lanes.rests(&route, now))
    }

    fn jittered_poll(&self) -> Duration {
        self.hub
            .settings
            .poll
            .mul_f64(0.75 + 0.25 * fastrand::f64())
    }
}
