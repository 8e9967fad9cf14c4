//! The roster: sessions with their free slots, the demand that follows, and the choice of a worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::member::{Member, Reach};
use super::session::{Profile, Session, SessionId};
use crate::domain::placement::Nodes;
use crate::domain::route::Route;
use crate::domain::scope::{FrameLimits, Transport};
use crate::domain::scope::{Group, Order, Scope, WorkerState};

/// The workers connected to this replica. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    roster: Mutex<Roster>,
    /// Latest-value: each of those who wait sees every change, and none loses one that came while it looked.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Roster {
    members: HashMap<SessionId, Member>,
    /// Advances on every choice, so that equally free workers take turns.
    cursor: u64,
    next_id: SessionId,
}

/// Free slots of the workers of one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDemand {
    /// What they serve.
    pub scope: Scope,
    /// How many tasks they can take now.
    pub free: u32,
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
}

impl Slot {
    /// Its task has ended as cancelled, and the worker goes on with it: the slot is not free for others.
    pub fn stick(&mut self) {
        let mut roster = self.shared.roster.lock();
        if !self.stuck
            && let Some(member) = roster.members.get_mut(&self.session)
        {
            member.stuck += 1;
            self.stuck = true;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut roster = self.shared.roster.lock();
        if let Some(member) = roster.members.get_mut(&self.session) {
            member.busy = member.busy.saturating_sub(1);
            member.stuck = member.stuck.saturating_sub(u32::from(self.stuck));
            member.rests_until = None;
            self.shared.changed.send_replace(());
        }
    }
}

impl Fleet {
    /// The number of the next session.
    #[must_use]
    pub fn next_session(&self) -> SessionId {
        let mut roster = self.shared.roster.lock();
        roster.next_id += 1;
        roster.next_id
    }

    /// Takes a worker in. It gets no tasks before the way to it is proven.
    pub fn register(&self, session: Session, profile: Arc<Profile>, order: Option<Order>) {
        let member = Member::new(session, profile, order);
        let mut roster = self.shared.roster.lock();
        roster.members.insert(member.session.id, member);
    }

    /// Strikes a session and ends its stream.
    pub fn deregister(&self, id: SessionId) {
        let gone = self.shared.roster.lock().members.remove(&id);
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
        let Some(member) = roster.members.get_mut(&id) else {
            return false;
        };
        let before = member.reach;
        member.reach = change(before);
        if before != member.reach {
            self.shared.changed.send_replace(());
        }
        before != member.reach
    }

    /// The worker takes nothing new, in its own words.
    pub fn drain(&self, id: SessionId) {
        self.with(id, |member| member.draining = true);
    }

    /// Takes up what operators ordered, by worker identity. Answers the sessions that are to go now: ordered to
    /// drain, with nothing left and no answer to wait for.
    pub fn take_orders(&self, order: impl Fn(&str) -> Option<Order>) -> Vec<Session> {
        let mut roster = self.shared.roster.lock();
        let mut going = Vec::new();
        for member in roster.members.values_mut() {
            let ordered = order(&member.profile.identity);
            if member.order != ordered {
                tracing::info!(
                    worker = member.profile.worker_id,
                    ?ordered,
                    "an operator's order is taken up"
                );
                member.order = ordered;
                self.shared.changed.send_replace(());
            }
            let idle = member.busy == 0 && !member.session.owes();
            if ordered == Some(Order::Drain) && idle {
                going.push(member.session.clone());
            }
        }
        going
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

    fn with(&self, id: SessionId, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.shared.roster.lock().members.get_mut(&id) {
            change(member);
        }
    }

    /// The worker does not know this type after all. True: that is news.
    pub fn strike_type(&self, id: SessionId, task_type: &str) -> bool {
        let mut roster = self.shared.roster.lock();
        roster
            .members
            .get_mut(&id)
            .is_some_and(|member| member.scope.task_types.remove(task_type))
    }

    /// Free slots by scope: what a sweep may claim.
    #[must_use]
    pub fn demand(&self, now: Instant) -> Vec<GroupDemand> {
        let roster = self.shared.roster.lock();
        let mut groups: BTreeMap<&Scope, u32> = BTreeMap::new();
        for member in roster.members.values() {
            let free = member.free(now);
            if free > 0 {
                *groups.entry(&member.scope).or_default() += free;
            }
        }
        groups
            .into_iter()
            .map(|(scope, free)| GroupDemand {
                scope: scope.clone(),
                free,
            })
            .collect()
    }

    /// When the next resting session may be asked again.
    #[must_use]
    pub fn next_rested(&self, now: Instant) -> Option<Instant> {
        let roster = self.shared.roster.lock();
        roster
            .members
            .values()
            .filter_map(|member| member.rests_until)
            .filter(|until| *until > now)
            .min()
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
        let mut roster = self.shared.roster.lock();
        roster.cursor += 1;
        let cursor = roster.cursor;
        let mut nearest: Option<(usize, usize)> = None;
        let mut too_large = false;
        let mut best: Option<&mut Member> = None;
        for member in roster
            .members
            .values_mut()
            .filter(|member| member.scope.serves(route, nodes))
            .filter(|member| !avoided.contains(&member.session.id))
        {
            let (bytes, limit) = (
                bytes(member.profile.transport),
                member.profile.max_frame_bytes,
            );
            if nearest.is_none_or(|(other, largest)| limit + other > largest + bytes) {
                nearest = Some((bytes, limit));
            }
            if limit < bytes {
                too_large = true;
                continue;
            }
            let rank = |member: &Member| (member.free(now), std::cmp::Reverse(member.last_chosen));
            if member.free(now) > 0 && best.as_deref().is_none_or(|best| rank(member) > rank(best))
            {
                best = Some(member);
            }
        }
        let Some(member) = best else {
            return Err(match nearest {
                Some((bytes, largest)) if too_large => Unplaced::TooLarge { bytes, largest },
                _ => Unplaced::NobodyFree,
            });
        };
        member.busy += 1;
        member.last_chosen = cursor;
        Ok(Placed {
            session: member.session.clone(),
            profile: Arc::clone(&member.profile),
            slot: Slot {
                shared: Arc::clone(&self.shared),
                session: member.session.id,
                stuck: false,
            },
        })
    }

    /// A slot for a task that the worker runs already, even beyond its number; none for a session that is gone.
    #[must_use]
    pub fn occupy(&self, id: SessionId) -> Option<Slot> {
        let mut roster = self.shared.roster.lock();
        let member = roster.members.get_mut(&id)?;
        member.busy += 1;
        Some(Slot {
            shared: Arc::clone(&self.shared),
            session: id,
            stuck: false,
        })
    }

    /// The slot groups, as other replicas are told of them.
    #[must_use]
    pub fn groups(&self, now: Instant) -> Vec<Group> {
        let roster = self.shared.roster.lock();
        let mut groups: BTreeMap<&Scope, Group> = BTreeMap::new();
        let staying = |member: &&Member| !member.draining && member.order.is_none();
        for member in roster.members.values().filter(staying) {
            let group = groups.entry(&member.scope).or_insert_with(|| Group {
                scope: member.scope.clone(),
                workers: 0,
                unreachable: 0,
                slots: 0,
                free: 0,
                frames: FrameLimits::default(),
            });
            group.workers += 1;
            let profile = &member.profile;
            group
                .frames
                .widen(profile.transport, profile.max_frame_bytes);
            if member.is_live() {
                group.slots += member.profile.slots;
                group.free += member.free(now);
            } else {
                group.unreachable += 1;
            }
        }
        groups.into_values().collect()
    }

    /// The workers, for people.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerState> {
        let roster = self.shared.roster.lock();
        roster.members.values().map(Member::describe).collect()
    }

    /// The way to one session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<Session> {
        self.shared
            .roster
            .lock()
            .members
            .get(&id)
            .map(|member| member.session.clone())
    }

    /// Changes whenever somebody may have become able to take a task. Subscribe, or mark as seen, before looking.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }
}

#[cfg(test)]
mod tests;
