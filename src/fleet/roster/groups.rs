//! Members in their slot groups, the free ones of a group ranked: what a sweep asks and what a placement takes costs the
//! same whether ten workers are connected or ten thousand.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::GroupDemand;
use crate::domain::placement::Nodes;
use crate::domain::route::Route;
use crate::domain::scope::{FrameLimits, Group, Order, Scope};
use crate::fleet::member::Member;
use crate::fleet::session::SessionId;

/// A slot group, for as long as it has members.
pub(in crate::fleet) type GroupId = u64;

/// Free slots, then who was chosen longest ago: the last one is the best.
type Rank = (u32, Reverse<u64>, SessionId);

#[derive(Debug)]
struct SlotGroup {
    scope: Arc<Scope>,
    members: BTreeSet<SessionId>,
    /// Those with free slots.
    ready: BTreeSet<Rank>,
    /// Free slots of all of these.
    free: u32,
}

/// Every change of a member goes through [`Roster::change`], which keeps the ranks true.
#[derive(Debug, Default)]
pub(super) struct Roster {
    members: HashMap<SessionId, Member>,
    groups: BTreeMap<GroupId, SlotGroup>,
    /// Members that rest, by the time until which they do.
    resting: BTreeSet<(Instant, SessionId)>,
    /// Members under an operator's order.
    ordered: BTreeSet<SessionId>,
    next_group: GroupId,
    /// Grows with every change.
    version: u64,
}

impl Roster {
    pub(super) fn get(&self, id: SessionId) -> Option<&Member> {
        self.members.get(&id)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Members under an operator's order.
    pub(super) fn ordered(&self) -> impl Iterator<Item = &Member> {
        self.ordered.iter().filter_map(|id| self.get(*id))
    }

    /// Members whose order is another one now, by identity. Where nobody has one, only those that had are looked at.
    pub(super) fn ordered_anew(
        &self,
        orders: &HashMap<String, Order>,
    ) -> Vec<(SessionId, Option<Order>)> {
        if orders.is_empty() {
            return self.ordered.iter().map(|id| (*id, None)).collect();
        }
        let news = self.members().filter_map(|member| {
            let order = orders.get(&member.profile.identity).copied();
            (member.order != order).then_some((member.session.id, order))
        });
        news.collect()
    }

    /// The same number twice: nothing has changed in between.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Takes a member into the group of its scope.
    pub(super) fn insert(&mut self, mut member: Member) {
        let known = self
            .groups
            .iter()
            .find(|(_, group)| group.scope == member.scope)
            .map(|(id, _)| *id);
        let group = known.unwrap_or_else(|| {
            self.next_group += 1;
            self.next_group
        });
        let entry = self.groups.entry(group).or_insert_with(|| SlotGroup {
            scope: Arc::clone(&member.scope),
            members: BTreeSet::new(),
            ready: BTreeSet::new(),
            free: 0,
        });
        member.group = group;
        // Equal scopes are one: comparing them comes down to comparing addresses.
        member.scope = Arc::clone(&entry.scope);
        entry.members.insert(member.session.id);
        let id = member.session.id;
        self.members.insert(id, member);
        self.change(id, |_| ());
    }

    pub(super) fn remove(&mut self, id: SessionId) -> Option<Member> {
        let member = self.members.remove(&id)?;
        self.version += 1;
        self.ordered.remove(&id);
        if let Some(until) = member.rests_until {
            self.resting.remove(&(until, id));
        }
        if let Some(group) = self.groups.get_mut(&member.group) {
            group.unrank(&member);
            group.members.remove(&id);
            if group.members.is_empty() {
                self.groups.remove(&member.group);
            }
        }
        Some(member)
    }

    /// Changes a member; none for a session that is gone. Its scope stays: for that it is removed and inserted.
    pub(super) fn change<T>(
        &mut self,
        id: SessionId,
        change: impl FnOnce(&mut Member) -> T,
    ) -> Option<T> {
        let member = self.members.get_mut(&id)?;
        let group = self.groups.get_mut(&member.group)?;
        group.unrank(member);
        if let Some(until) = member.rests_until {
            self.resting.remove(&(until, id));
        }
        let answer = change(member);
        group.rank(member);
        if let Some(until) = member.rests_until {
            self.resting.insert((until, id));
        }
        if member.order.is_some() {
            self.ordered.insert(id);
        } else {
            self.ordered.remove(&id);
        }
        self.version += 1;
        Some(answer)
    }

    /// Ends the rest of those who have rested by now. True: somebody has.
    pub(super) fn wake(&mut self, now: Instant) -> bool {
        let mut is_news = false;
        while let Some((until, id)) = self.resting.first().copied()
            && until <= now
        {
            self.resting.pop_first();
            self.change(id, |member| member.rests_until = None);
            is_news = true;
        }
        is_news
    }

    /// When the next one has rested.
    pub(super) fn next_rested(&self) -> Option<Instant> {
        self.resting.first().map(|(until, _)| *until)
    }

    pub(super) fn demand(&self) -> Vec<GroupDemand> {
        let free = self.groups.values().filter(|group| group.free > 0);
        free.map(|group| GroupDemand {
            scope: Arc::clone(&group.scope),
            free: group.free,
        })
        .collect()
    }

    /// The best free member that serves the route and `fits`.
    pub(super) fn best(
        &self,
        route: &Route,
        nodes: Nodes<'_>,
        fits: impl Fn(&Member) -> bool,
    ) -> Option<SessionId> {
        let bests = self.serving(route, nodes).filter_map(|group| {
            let mut ranks = group.ready.iter().rev();
            ranks.find(|(_, _, id)| self.get(*id).is_some_and(&fits))
        });
        bests.max().map(|(_, _, id)| *id)
    }

    /// All members that serve the route, free or not.
    pub(super) fn all_serving(
        &self,
        route: &Route,
        nodes: Nodes<'_>,
    ) -> impl Iterator<Item = &Member> {
        self.serving(route, nodes)
            .flat_map(|group| &group.members)
            .filter_map(|id| self.get(*id))
    }

    fn serving(&self, route: &Route, nodes: Nodes<'_>) -> impl Iterator<Item = &SlotGroup> {
        let groups = self.groups.values();
        groups.filter(move |group| group.scope.serves(route, nodes))
    }

    /// The groups, as other replicas are told of them.
    pub(super) fn describe(&self) -> Vec<Group> {
        let staying = |member: &&Member| !member.draining && member.order.is_none();
        let told = self.groups.values().filter_map(|slots| {
            let members = slots.members.iter().filter_map(|id| self.get(*id));
            let mut group = Group {
                scope: (*slots.scope).clone(),
                workers: 0,
                unreachable: 0,
                slots: 0,
                free: 0,
                frames: FrameLimits::default(),
            };
            for member in members.filter(staying) {
                let profile = &member.profile;
                group.workers += 1;
                group
                    .frames
                    .widen(profile.transport, profile.max_frame_bytes);
                if member.is_live() {
                    group.slots += profile.slots;
                    group.free += member.free();
                } else {
                    group.unreachable += 1;
                }
            }
            (group.workers > 0).then_some(group)
        });
        let mut told: Vec<Group> = told.collect();
        told.sort_unstable_by(|one, other| one.scope.cmp(&other.scope));
        told
    }
}

impl SlotGroup {
    fn rank(&mut self, member: &Member) {
        let free = member.free();
        if free > 0 {
            self.ready.insert(rank(member, free));
            self.free += free;
        }
    }

    fn unrank(&mut self, member: &Member) {
        let free = member.free();
        if self.ready.remove(&rank(member, free)) {
            self.free -= free;
        }
    }
}

fn rank(member: &Member, free: u32) -> Rank {
    (free, Reverse(member.last_chosen), member.session.id)
}
