//! What is being delivered here: one entry a task, from its claim until its report goes to the settler.

mod overdue;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::domain::id::{TaskId, Token};
use crate::domain::outcome::Outcome;
use crate::domain::policy::Policy;
use crate::domain::route::Route;
use crate::fleet::{Profile, SessionId, Slot};
use crate::telemetry::trace::{DeliverySpan, Step};
pub(super) use overdue::Limits;

/// One task at one worker. Dropping it frees the worker's slot.
#[derive(Debug)]
pub struct Delivery {
    /// Names this delivery.
    pub token: Token,
    /// Where the task goes.
    pub route: Arc<Route>,
    /// Where it comes from.
    pub origin: Origin,
    /// The task's limits.
    pub policy: Policy,
    /// The stream that it went over.
    pub session: SessionId,
    /// The worker that has it.
    pub worker: Arc<Profile>,
    /// Its slot there.
    pub slot: Option<Slot>,
    /// Where it stands.
    pub stage: Stage,
    /// Asked to stop since; the worker has been told.
    pub cancelled_at: Option<Instant>,
    /// Its span; it goes on with the report.
    pub span: DeliverySpan,
}

/// Where a delivery comes from, and with that what becomes of its end.
#[derive(Debug)]
pub enum Origin {
    /// From a row that is claimed: its end is written there.
    Durable {
        /// Failed tries before this one.
        attempt: u32,
        /// Done when accepted.
        settle_accepted: bool,
    },
    /// From a caller that waits: it is told the end, and nothing is written.
    Direct {
        /// The way to the caller.
        reply: oneshot::Sender<Ended>,
    },
}

/// How a direct delivery ended.
#[derive(Debug)]
pub struct Ended {
    /// What happened.
    pub outcome: Outcome,
    /// The worker that had it, and the stream that it went over; none when it got to nobody.
    pub worker: Option<(SessionId, Arc<Profile>)>,
}

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sent, and neither accepted nor refused.
    Sent(Instant),
    /// Accepted at the first time, heard of last at the second.
    Running(Instant, Instant),
    /// The stream ended at the time given; when it had been accepted before, if it had.
    Orphaned(Instant, Option<Instant>),
}

/// The deliveries of this term.
#[derive(Debug, Default)]
pub struct InFlight {
    deliveries: Mutex<HashMap<TaskId, Delivery>>,
    /// Slots of deliveries that have ended as cancelled while their workers go on with them.
    stuck: Mutex<HashMap<Token, (SessionId, Slot)>>,
}

impl InFlight {
    /// Takes deliveries in, just before they are sent. One of the same task that is still here (its claim was
    /// lost meanwhile) is replaced.
    pub fn begin(&self, deliveries: impl IntoIterator<Item = Delivery>) {
        let mut all = self.deliveries.lock();
        let replaced: Vec<_> = deliveries
            .into_iter()
            .filter_map(|delivery| all.insert(delivery.token.id, delivery))
            .collect();
        drop(all);
        drop(replaced);
    }

    /// Who has this task here.
    #[must_use]
    pub fn worker_of(&self, id: TaskId) -> Option<Arc<Profile>> {
        let all = self.deliveries.lock();
        all.get(&id).map(|delivery| Arc::clone(&delivery.worker))
    }

    /// Takes the deliveries with these tokens out.
    pub fn finish<'t>(
        &self,
        tokens: impl IntoIterator<Item = &'t Token>,
    ) -> HashMap<TaskId, Delivery> {
        let mut all = self.deliveries.lock();
        let mut finished = HashMap::new();
        for token in tokens {
            if let Entry::Occupied(entry) = all.entry(token.id)
                && entry.get().token == *token
            {
                finished.insert(token.id, entry.remove());
            }
        }
        finished
    }

    /// Shows that the worker goes on with a task that has ended, unless it has answered for it meanwhile.
    pub fn show_stuck(&self, token: &Token) {
        if let Some((_, slot)) = self.stuck.lock().get_mut(token) {
            slot.stick();
        }
    }

    /// The worker has answered for these: what was stuck there is free.
    pub fn free_stuck<'t>(&self, tokens: impl IntoIterator<Item = &'t Token>) {
        let mut stuck = self.stuck.lock();
        if stuck.is_empty() {
            return;
        }
        let freed: Vec<_> = tokens
            .into_iter()
            .filter_map(|token| stuck.remove(token))
            .collect();
        drop(stuck);
        // Slots lock the roster, so they are let go outside of this lock.
        drop(freed);
    }

    /// The stream ended: nobody can answer over it any more.
    pub fn forget_stuck(&self, session: SessionId) {
        let mut stuck = self.stuck.lock();
        let gone: Vec<_> = stuck
            .extract_if(|_, (owner, _)| *owner == session)
            .collect();
        drop(stuck);
        drop(gone);
    }

    /// The worker has accepted these. Answers the durable ones, and who has those that are done with that; they keep
    /// their slot until the worker reports.
    pub fn accept(&self, tokens: &[Token], now: Instant) -> Vec<super::counts::Accepted> {
        let mut all = self.deliveries.lock();
        let mut accepted = Vec::new();
        for token in tokens {
            let Some(delivery) = all
                .get_mut(&token.id)
                .filter(|delivery| delivery.token == *token)
            else {
                continue;
            };
            if matches!(delivery.stage, Stage::Sent(_)) {
                delivery.stage = Stage::Running(now, now);
                delivery.span.step(Step::Accepted);
                if let Origin::Durable {
                    settle_accepted, ..
                } = delivery.origin
                {
                    let done = settle_accepted
                        .then(|| (Arc::clone(&delivery.worker), delivery.span.clone()));
                    accepted.push((*token, delivery.route.id, done));
                }
            }
        }
        accepted
    }

    /// The worker has been heard of this task.
    pub fn progress(&self, token: Token, now: Instant) {
        let mut all = self.deliveries.lock();
        if let Some(delivery) = all
            .get_mut(&token.id)
            .filter(|delivery| delivery.token == token)
            && let Stage::Running(since, _) = delivery.stage
        {
            delivery.stage = Stage::Running(since, now);
        }
    }

    /// The stream ended: its deliveries wait for their worker to come back.
    pub fn orphan(&self, session: SessionId, now: Instant) -> usize {
        let mut all = self.deliveries.lock();
        let mut slots = Vec::new();
        for delivery in all
            .values_mut()
            .filter(|delivery| delivery.session == session)
        {
            let accepted = match delivery.stage {
                Stage::Running(since, _) => Some(since),
                Stage::Orphaned(_, accepted) => accepted,
                Stage::Sent(_) => None,
            };
            delivery.stage = Stage::Orphaned(now, accepted);
            slots.push(delivery.slot.take());
        }
        drop(all);
        slots.len()
    }

    /// Drops the deliveries of a session without a word: they stay claimed.
    pub fn leave(&self, session: SessionId) -> usize {
        let mut all = self.deliveries.lock();
        let left: Vec<_> = all
            .extract_if(|_, delivery| delivery.session == session)
            .collect();
        drop(all);
        left.len()
    }

    /// A worker came back over another session and named these. Answers the tokens that are here.
    pub fn rebind(
        &self,
        tokens: &[Token],
        session: SessionId,
        worker: &Arc<Profile>,
        slot: impl Fn() -> Option<Slot>,
        now: Instant,
    ) -> Vec<Token> {
        let mut all = self.deliveries.lock();
        let mut released = Vec::new();
        let mut bound = Vec::new();
        for token in tokens {
            if let Some(delivery) = all
                .get_mut(&token.id)
                .filter(|delivery| delivery.token == *token)
            {
                delivery.session = session;
                delivery.worker = Arc::clone(worker);
                // The run timeout goes on over the gap, as the deadline in the row does.
                let since = match delivery.stage {
                    Stage::Running(since, _) | Stage::Orphaned(_, Some(since)) => since,
                    Stage::Sent(_) | Stage::Orphaned(_, None) => now,
                };
                delivery.stage = Stage::Running(since, now);
                released.push(delivery.slot.take());
                bound.push(*token);
            }
        }
        drop(all);
        // Slots lock the roster, so they are let go and taken outside of this lock.
        drop(released);
        for token in &bound {
            let taken = slot();
            let mut all = self.deliveries.lock();
            if let Some(delivery) = all.get_mut(&token.id)
                && delivery.token == *token
            {
                delivery.slot = taken;
            }
        }
        bound
    }

    /// Marks deliveries that are to stop; answers those that their workers have not been told of yet.
    pub fn cancel(&self, tokens: &[Token], now: Instant) -> Vec<(Token, SessionId)> {
        let mut all = self.deliveries.lock();
        let mut news = Vec::new();
        for token in tokens {
            let Some(delivery) = all
                .get_mut(&token.id)
                .filter(|delivery| delivery.token == *token)
            else {
                continue;
            };
            if delivery.cancelled_at.is_none() {
                delivery.cancelled_at = Some(now);
                news.push((*token, delivery.session));
            }
        }
        news
    }

    /// Which of these are to stop, and over which session they went.
    pub fn cancelled(&self, tokens: &[Token]) -> Vec<(Token, SessionId)> {
        let all = self.deliveries.lock();
        let to_stop = |token: &Token| {
            all.get(&token.id)
                .filter(|delivery| delivery.token == *token && delivery.cancelled_at.is_some())
                .map(|delivery| (*token, delivery.session))
        };
        tokens.iter().filter_map(to_stop).collect()
    }

    /// Takes out the deliveries whose time is over, with what that means. The slot of one that the worker was asked to
    /// stop in vain stays taken until the worker answers for it, or its stream ends.
    pub fn overdue(&self, limits: Limits, now: Instant) -> Vec<(Delivery, Outcome)> {
        let mut all = self.deliveries.lock();
        let late: Vec<(TaskId, Outcome)> = all
            .values()
            .filter_map(|delivery| Some((delivery.token.id, delivery.overdue(limits, now)?)))
            .collect();
        let mut ended = Vec::with_capacity(late.len());
        for (id, outcome) in late {
            let Some(mut delivery) = all.remove(&id) else {
                continue;
            };
            // Under the lock of the deliveries: an answer finds the one or the other.
            if outcome == Outcome::Ignored
                && let Some(slot) = delivery.slot.take()
            {
                let entry = (delivery.session, slot);
                self.stuck.lock().insert(delivery.token, entry);
            }
            ended.push((delivery, outcome));
        }
        ended
    }

    /// Takes everything out.
    pub fn clear(&self) -> Vec<Delivery> {
        self.deliveries
            .lock()
            .drain()
            .map(|(_, delivery)| delivery)
            .collect()
    }

    /// Whether this session has direct deliveries, which no other replica can take over.
    #[must_use]
    pub fn holds_direct(&self, session: SessionId) -> bool {
        let all = self.deliveries.lock();
        all.values().any(|delivery| {
            delivery.session == session && matches!(delivery.origin, Origin::Direct { .. })
        })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.deliveries.lock().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deliveries.lock().is_empty()
    }
}
