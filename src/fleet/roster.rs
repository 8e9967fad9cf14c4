//! The roster: sessions with their free slots, the demand that follows, and the choice of a worker.

mod groups;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

pub(super) use self::groups::GroupId;
use self::groups::Roster;
use super::member::{Member, Reach};
use super::session::{Profile, Session, SessionId};
use crate::domain::placement::Nodes;
use crate::domain::route::Route;
use crate::domain::scope::{Group, Order, Scope, Transport, WorkerState};

/// The workers connected to this replica. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    roster: Mutex<Roster>,
    /// Advances on every choice, so that equally free workers take turns.
    cursor: AtomicU64,
    next_id: AtomicU64,
    /// Latest-value: each of those who wait sees every change, and none loses one that came while it looked.
    changed: watch::Sender<()>,
}

/// Free slots of the workers of one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDemand {
    /// What they serve.
    pub scope: Arc<Scope>,
    /// How many tasks they can take now.
    pub free: u32,
}

/// How many workers and slots there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strength {
    /// Workers behind the gRPC door.
    pub grpc: u64,
    /// Workers behind the WebSocket.
    pub websocket: u64,
    /// Slots of all of them.
    pub slots: u64,
    /// Slots that could take a task now.
    pub free: u64,
    /// Slots of cancelled tasks that their workers go on with.
    pub stuck: u64,
}

/// A worker chosen for one task, with one slot of it reserved.
#[derive(Debug)]
pub struct Placed {
    /// The way to it.
    pub session: Session,
    /// What it said of itself.
    pub profile: Arc<Profile>,
    /// Its slot, until dropped.
    pub slot: Slot,
}

/// Why no worker could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unplaced {
    /// Nobody here who serves the route has a free slot.
    NobodyFree,
    /// Those who serve the route and have a free slot take no frame of that size.
    TooLarge {
        /// Bytes of the frame on its way to the worker here who serves the route and comes nearest to taking it.
        bytes: usize,
        /// Bytes of the largest frame that this worker takes.
        largest: usize,
    },
}

/// One reserved slot of a session; dropping it frees the slot, whatever path led there.
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
    session: SessionId,
    /// Its task has ended, and the worker has not stopped it.
    stuck: bool,
    /// The worker says that it has no such slot.
    refused: bool,
}

impl Slot {
    /// Its task has ended as cancelled, and the worker goes on with it: the slot is not free for others.
    pub fn stick(&mut self) {
        if self.stuck {
            return;
        }
        let mut roster = self.shared.roster.lock();
        let stuck = roster.change(self.session, |member| member.stuck += 1);
        self.stuck = stuck.is_some();
    }

    /// The worker has refused its task for want of a slot: that this one is free then is no reason to end its rest.
    pub fn refuse(&mut self) {
        self.refused = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let freed = self.shared.roster.lock().change(self.session, |member| {
            member.busy = member.busy.saturating_sub(1);
            member.stuck = member.stuck.saturating_sub(u32::from(self.stuck));
            if !self.refused {
                member.rests_until = None;
            }
        });
        if freed.is_some() {
            self.shared.changed.send_replace(());
        }
    }
}

impl Fleet {
    /// The number of the next session.
    #[must_use]
    pub fn next_session(&self) -> SessionId {
        self.shared.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes a worker in. It gets no tasks before the way to it is proven.
    pub fn register(&self, session: Session, profile: Arc<Profile>, order: Option<Order>) {
        let member = Member::new(session, profile, order);
        self.shared.roster.lock().insert(member);
    }

    /// Strikes a session and ends its stream.
    pub fn deregister(&self, id: SessionId) {
        let gone = self.shared.roster.lock().remove(id);
        if let Some(member) = gone {
            member.session.end();
            // It may have been the last one that was preferred.
            self.shared.changed.send_replace(());
        }
    }

    /// The way to the worker is proven. True: that is news.
    pub fn prove(&self, id: SessionId) -> bool {
        self.change_reach(id, |_| Reach::Proven)
    }

    /// A proof has aged: a worker that was proven gets nothing new. True: that is news.
    pub fn doubt(&self, id: SessionId) -> bool {
        self.change_reach(id, |reach| match reach {
            Reach::Opening => Reach::Opening,
            Reach::Proven | Reach::Lost => Reach::Lost,
        })
    }

    fn change_reach(&self, id: SessionId, change: impl FnOnce(Reach) -> Reach) -> bool {
        let mut roster = self.shared.roster.lock();
        let before = roster.get(id).map(|member| member.reach);
        let after = before.map(change);
        // Most answers to pings are no news: they touch nothing else.
        let news = after.filter(|after| Some(*after) != before);
        let Some(reach) = news else { return false };
        roster.change(id, |member| member.reach = reach);
        self.shared.changed.send_replace(());
        true
    }

    /// The worker takes nothing new, in its own words.
    pub fn drain(&self, id: SessionId) {
        self.with(id, |member| member.draining = true);
    }

    /// Takes up what operators ordered, by worker identity. Answers the sessions that are to go now: ordered to
    /// drain, with nothing left and no answer to wait for.
    pub fn take_orders(&self, orders: &HashMap<String, Order>) -> Vec<Session> {
        let mut roster = self.shared.roster.lock();
        for (id, ordered) in roster.ordered_anew(orders) {
            roster.change(id, |member| {
                tracing::info!(
                    worker = member.profile.worker_id,
                    ?ordered,
                    "an operator's order is taken up"
                );
                member.order = ordered;
            });
            self.shared.changed.send_replace(());
        }
        let going = roster.ordered().filter(|member| {
            let idle = member.busy == 0 && !member.session.owes();
            member.order == Some(Order::Drain) && idle
        });
        going.map(|member| member.session.clone()).collect()
    }

    /// The worker said that it has no slot: it is passed over until it frees one, or for a while that
    /// doubles with every refusal in a row.
    pub fn rest(&self, id: SessionId, now: Instant) {
        self.with(id, |member| member.rest(now));
    }

    /// The worker accepted a task: its refusals are forgotten.
    pub fn accepted(&self, id: SessionId) {
        self.with(id, |member| member.refusals = 0);
    }

    fn with<T>(&self, id: SessionId, change: impl FnOnce(&mut Member) -> T) -> Option<T> {
        self.shared.roster.lock().change(id, change)
    }

    /// The worker does not know this type after all. True: that is news.
    pub fn strike_type(&self, id: SessionId, task_type: &str) -> bool {
        let mut roster = self.shared.roster.lock();
        let Some(mut member) = roster.remove(id) else {
            return false;
        };
        let is_news = Arc::make_mut(&mut member.scope)
            .task_types
            .remove(task_type);
        roster.insert(member);
        is_news
    }

    /// The roster as it is now. That somebody has rested is news for whoever waits for a slot and did not ask in time for
    /// the end of that rest.
    fn awake(&self, now: Instant) -> MutexGuard<'_, Roster> {
        let mut roster = self.shared.roster.lock();
        if roster.wake(now) {
            self.shared.changed.send_replace(());
        }
        roster
    }

    /// Free slots by scope: what a sweep may claim.
    #[must_use]
    pub fn demand(&self, now: Instant) -> Vec<GroupDemand> {
        self.awake(now).demand()
    }

    /// When the next resting session may be asked again.
    #[must_use]
    pub fn next_rested(&self, now: Instant) -> Option<Instant> {
        self.awake(now).next_rested()
    }

    /// Chooses a worker for a task of this route whose frame has so many `bytes` behind each door, and reserves a
    /// slot of it in the same step: most free slots first, the one chosen longest ago among equals.
    pub fn place(
        &self,
        route: &Route,
        nodes: Nodes<'_>,
        bytes: impl Fn(Transport) -> usize,
        now: Instant,
    ) -> Result<Placed, Unplaced> {
        self.place_beside(&[], route, nodes, bytes, now)
    }

    /// As [`Fleet::place`], passing these sessions over.
    pub fn place_beside(
        &self,
        avoided: &[SessionId],
        route: &Route,
        nodes: Nodes<'_>,
        bytes: impl Fn(Transport) -> usize,
        now: Instant,
    ) -> Result<Placed, Unplaced> {
        let cursor = self.shared.cursor.fetch_add(1, Ordering::Relaxed) + 1;
        let takes =
            |member: &Member| bytes(member.profile.transport) <= member.profile.max_frame_bytes;
        // Of a stream that has ended and is not struck yet nothing comes back.
        let fits = |member: &Member| {
            takes(member)
                && !avoided.contains(&member.session.id)
                && !member.session.ended().is_cancelled()
        };
        let mut roster = self.awake(now);
        let chosen = roster.best(route, nodes, fits);
        let placed = chosen.and_then(|id| {
            roster.change(id, |member| {
                member.busy += 1;
                member.last_chosen = cursor;
                Placed {
                    session: member.session.clone(),
                    profile: Arc::clone(&member.profile),
                    slot: self.slot(id),
                }
            })
        });
        placed.ok_or_else(|| {
            let others = roster
                .all_serving(route, nodes)
                .filter(|member| !avoided.contains(&member.session.id));
            let frame = |member: &Member| {
                let profile = &member.profile;
                (
                    bytes(profile.transport),
                    profile.max_frame_bytes,
                    takes(member),
                )
            };
            unplaced(others.map(frame))
        })
    }

    fn slot(&self, session: SessionId) -> Slot {
        Slot {
            shared: Arc::clone(&self.shared),
            session,
            stuck: false,
            refused: false,
        }
    }

    /// A slot for a task that the worker runs already, even beyond its number; none for a session that is gone.
    #[must_use]
    pub fn occupy(&self, id: SessionId) -> Option<Slot> {
        self.with(id, |member| member.busy += 1)?;
        Some(self.slot(id))
    }

    /// The same number twice: in between nothing has changed of what [`Fleet::groups`] and [`Fleet::workers`] say.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.roster.lock().version()
    }

    /// The slot groups, as other replicas are told of them.
    #[must_use]
    pub fn groups(&self, now: Instant) -> Vec<Group> {
        self.awake(now).describe()
    }

    /// How many workers and slots there are.
    #[must_use]
    pub fn strength(&self, now: Instant) -> Strength {
        let roster = self.awake(now);
        let mut strength = Strength::default();
        for member in roster.members() {
            match member.profile.transport {
                Transport::Grpc => strength.grpc += 1,
                Transport::WebSocket => strength.websocket += 1,
            }
            strength.slots += u64::from(member.profile.slots);
            strength.free += u64::from(member.free());
            strength.stuck += u64::from(member.stuck);
        }
        strength
    }

    /// The workers, for people.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerState> {
        let roster = self.shared.roster.lock();
        roster.members().map(Member::describe).collect()
    }

    /// The way to one session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<Session> {
        let roster = self.shared.roster.lock();
        roster.get(id).map(|member| member.session.clone())
    }

    /// Changes whenever somebody may have become able to take a task. Subscribe, or mark as seen, before looking.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }
}

/// Why none of those who serve the route was chosen, by the bytes of the frame on its way to each of them, the largest
/// that it takes, and whether it takes this one.
fn unplaced(others: impl Iterator<Item = (usize, usize, bool)>) -> Unplaced {
    let mut too_large = false;
    let mut nearest: Option<(usize, usize)> = None;
    for (bytes, limit, takes) in others {
        if nearest.is_none_or(|(other, largest)| limit + other > largest + bytes) {
            nearest = Some((bytes, limit));
        }
        too_large |= !takes;
    }
    match nearest {
        Some((bytes, largest)) if too_large => Unplaced::TooLarge { bytes, largest },
        _ => Unplaced::NobodyFree,
    }
}

#[cfg(test)]
mod tests;
