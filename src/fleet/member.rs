//! One connected worker, as the roster keeps it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::roster::GroupId;
use super::session::{Profile, Session};
use crate::domain::scope::{Order, Scope, WorkerState};

/// First wait of a session that refuses; it doubles with each refusal in a row.
pub(super) const REFUSAL_WAIT: Duration = Duration::from_millis(50);
/// Longest wait of a session that refuses.
const REFUSAL_WAIT_MAX: Duration = Duration::from_secs(5);

/// Whether the way to a worker is proven. Only answered pings prove it: what it sends says nothing of what reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Not proven yet: the opening probation, which clears itself after two answers.
    Opening,
    /// Proven.
    Proven,
    /// Proven before, and unanswered for half the silence window: it gets nothing new.
    Lost,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: Session,
    pub(super) profile: Arc<Profile>,
    /// What it serves now: its profile without the types that it refused.
    pub(super) scope: Arc<Scope>,
    /// Its slot group.
    pub(super) group: GroupId,
    /// Tasks in flight; more than its slots only by adoption.
    pub(super) busy: u32,
    /// Of these, tasks that have ended as cancelled and that it has not stopped.
    pub(super) stuck: u32,
    pub(super) reach: Reach,
    /// It said itself that it takes nothing new.
    pub(super) draining: bool,
    pub(super) order: Option<Order>,
    pub(super) refusals: u32,
    pub(super) rests_until: Option<Instant>,
    pub(super) last_chosen: u64,
}

impl Member {
    pub(super) fn new(session: Session, profile: Arc<Profile>, order: Option<Order>) -> Self {
        Self {
            scope: Arc::new(profile.scope.clone()),
            group: 0,
            session,
            profile,
            busy: 0,
            stuck: 0,
            reach: Reach::Opening,
            draining: false,
            order,
            refusals: 0,
            rests_until: None,
            last_chosen: 0,
        }
    }

    /// Whether it may get tasks at all, slots aside.
    pub(super) fn is_live(&self) -> bool {
        self.reach == Reach::Proven && !self.draining && self.order.is_none()
    }

    /// Tasks that it can take; none while it rests.
    pub(super) fn free(&self) -> u32 {
        if !self.is_live() || self.rests_until.is_some() {
            return 0;
        }
        self.profile.slots.saturating_sub(self.busy)
    }

    pub(super) fn rest(&mut self, now: Instant) {
        let doubled = REFUSAL_WAIT.saturating_mul(1 << self.refusals.min(10));
        self.refusals += 1;
        self.rests_until = Some(now + doubled.min(REFUSAL_WAIT_MAX));
    }

    pub(super) fn describe(&self) -> WorkerState {
        let profile = &self.profile;
        WorkerState {
            worker_id: profile.worker_id.clone(),
            identity: profile.identity.clone(),
            node: profile.scope.node.clone(),
            task_queue: profile.scope.task_queue.clone(),
            build_id: profile.build_id.clone(),
            transport: profile.transport.name(),
            state: self.state(),
            slots: profile.slots,
            busy: self.busy,
            stuck: self.stuck,
        }
    }

    /// Its state in one word, for people.
    fn state(&self) -> &'static str {
        match (self.reach, self.order) {
            (Reach::Lost, _) => "unreachable",
            (_, Some(Order::Drain)) => "draining",
            (_, Some(Order::Cordon)) => "cordoned",
            _ if self.draining => "draining",
            (Reach::Opening, None) => "opening",
            (Reach::Proven, None) => "ready",
        }
    }
}
