//! What a sweep asks for: free slots are divided among the tenants with due work, and each tenant's among its lanes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};

use super::{Given, Lane, Lanes, RESET_INTERVAL, START};
use crate::domain::fairness::{Line, Tenant};
use crate::domain::id::{NamespaceId, RouteId};
use crate::domain::placement::Nodes;
use crate::domain::quota::Limited;
use crate::domain::route::Route;
use crate::fleet::GroupDemand;
use crate::store::claim::{ClaimRequest, LaneRequest};

/// Slot groups whose order of tenants is remembered; beyond them, those without free slots start anew.
const LINES: usize = 64;
/// Lanes of which nothing is known may ask for so many times their tenant's share together. What is locked in vain is
/// bounded by that.
const UNKNOWN: i32 = 2;

/// A lane that a slot group with free slots serves.
struct Candidate {
    lane: Lane,
    tenant: Tenant,
    limits: Vec<Limited>,
    /// Its first row's place in the tenant's line.
    place: DateTime<Utc>,
    deep: bool,
}

impl Candidate {
    /// Its route has a quota or rate, of which other routes of the tenant know nothing.
    fn has_own_limit(&self) -> bool {
        self.limits.contains(&Limited::Route(self.lane.0))
    }
}

/// A route, and the slot group that it goes to.
type Known<'r> = (&'r Route, Option<usize>);

/// Candidates of one slot group by tenant.
type Waiting = BTreeMap<NamespaceId, Vec<Candidate>>;

impl Lanes {
    /// What a sweep asks for: the free slots of each group divided among the tenants with due work that it serves, at
    /// most `batch` rows in all, of which groups without due work take nothing. A lane that several groups serve goes to
    /// the one with the most free slots, so that no row is asked for twice.
    pub(in crate::dispatch) fn plan<'r>(
        &mut self,
        demand: &[GroupDemand],
        target: impl Fn(RouteId) -> Option<(&'r Route, Nodes<'r>)>,
        batch: i32,
        now: Instant,
    ) -> ClaimRequest {
        self.take_back();
        self.forget_lines(demand);
        let (groups, waiting) = self.candidates(demand, target, now);
        let wanted = demand.iter().zip(&groups);
        let wanted: Vec<u32> = wanted
            .map(|(group, waiting)| if waiting.is_empty() { 0 } else { group.free })
            .collect();
        let free = grant(u32::try_from(batch).unwrap_or(0), &wanted);
        self.waiting = waiting;
        self.aged.clear();
        let mut request = ClaimRequest {
            ageing: self.ageing,
            ..ClaimRequest::default()
        };
        for ((group, free), waiting) in demand.iter().zip(free).zip(groups) {
            self.divide(group, free, waiting, &mut request, now);
        }
        request.awaited = self.limits.awaited(&request.quotas);
        request
    }

    /// A claim whose outcome nobody learned is charged to nobody.
    fn take_back(&mut self) {
        for given in self.given.drain(..) {
            if let Some((_, line)) = self.lines.get_mut(given.line) {
                line.settle(given.share, 0);
            }
        }
    }

    /// The lanes that may have work and whose limits do not rest, by the group that they go to; and how many lanes each
    /// tenant has, whether they are asked for or not.
    fn candidates<'r>(
        &self,
        demand: &[GroupDemand],
        target: impl Fn(RouteId) -> Option<(&'r Route, Nodes<'r>)>,
        now: Instant,
    ) -> (Vec<Waiting>, HashMap<NamespaceId, usize>) {
        let mut tenants: HashMap<NamespaceId, usize> = HashMap::new();
        let mut groups: Vec<Waiting> = demand.iter().map(|_| Waiting::new()).collect();
        let clock = self.clock(now);
        let rests = |route| {
            let rest = self.resting.get(&route);
            rest.is_some_and(|(_, until)| now < *until)
        };
        // Lanes of one route stand together.
        let mut last: Option<(RouteId, Option<Known<'r>>)> = None;
        for lane in &self.active {
            let known = match last {
                Some((route, known)) if route == lane.0 => known,
                _ => target(lane.0).map(|(route, nodes)| {
                    let rests = rests(route.id) || self.rests(route, now);
                    let serving = demand
                        .iter()
                        .enumerate()
                        .filter(|(_, group)| !rests && group.scope.serves(route, nodes));
                    let most = serving.max_by_key(|(_, group)| group.free);
                    (route, most.map(|(at, _)| at))
                }),
            };
            last = Some((lane.0, known));
            let Some((route, group)) = known else {
                continue;
            };
            *tenants.entry(route.namespace_id).or_default() += 1;
            let Some(group) = group else {
                continue;
            };
            let (Some(state), Some(waiting)) = (self.lanes.get(lane), groups.get_mut(group)) else {
                continue;
            };
            let candidate = Candidate {
                lane: *lane,
                tenant: Tenant {
                    namespace: route.namespace_id,
                    weight: route.weight,
                },
                limits: route.limits().collect(),
                place: self.ageing.place(lane.1, state.head.unwrap_or(clock)),
                deep: state.deep,
            };
            waiting
                .entry(route.namespace_id)
                .or_default()
                .push(candidate);
        }
        (groups, tenants)
    }

    /// Divides the free slots of one group.
    fn divide(
        &mut self,
        group: &GroupDemand,
        free: u32,
        mut waiting: Waiting,
        request: &mut ClaimRequest,
        now: Instant,
    ) {
        let tenants: Vec<Tenant> = waiting
            .values()
            .filter_map(|lanes| Some(lanes.first()?.tenant))
            .collect();
        let seed = self.seed;
        let at = self.line(group);
        let Some((_, line)) = self.lines.get_mut(at) else {
            return;
        };
        for share in line.divide(&tenants, free, seed) {
            let mut lanes = waiting.remove(&share.tenant.namespace).unwrap_or_default();
            lanes.sort_by_key(|lane| (lane.place, lane.lane));
            lanes.retain(|lane| self.limits.admit(&lane.limits, &mut request.quotas, now));
            if lanes.is_empty() {
                line.settle(share, 0);
                continue;
            }
            let slots = i32::try_from(share.slots).unwrap_or(i32::MAX);
            let number = request.shares.len();
            request.shares.push(slots);
            self.given.push(Given { line: at, share });
            let mut urgent = i16::MAX;
            for lane in lanes.iter().rev() {
                if lane.lane.1 > urgent {
                    self.aged.insert(lane.lane);
                }
                urgent = urgent.min(lane.lane.1);
            }
            for (lane, limit) in lanes.iter().zip(spread(&lanes, slots)) {
                let Some(state) = self.lanes.get_mut(&lane.lane).filter(|_| limit > 0) else {
                    continue;
                };
                if now >= state.reset_at {
                    state.mark = START;
                    state.reset_at = now + RESET_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64());
                }
                request.lanes.push(LaneRequest {
                    route: lane.lane.0,
                    namespace: lane.tenant.namespace,
                    priority: lane.lane.1,
                    limit,
                    low: state.mark,
                    share: number,
                    limited: !lane.limits.is_empty(),
                    ..LaneRequest::default()
                });
            }
        }
    }

    /// The place of a group's line in [`Lanes::lines`].
    fn line(&mut self, group: &GroupDemand) -> usize {
        if let Some(at) = self
            .lines
            .iter()
            .position(|(scope, _)| *scope == group.scope)
        {
            return at;
        }
        self.lines.push((Arc::clone(&group.scope), Line::default()));
        self.lines.len() - 1
    }

    /// Forgets the order of tenants at groups that have no free slots, where there are very many groups.
    fn forget_lines(&mut self, demand: &[GroupDemand]) {
        if self.lines.len() > LINES + 2 * demand.len() {
            self.lines
                .retain(|(scope, _)| demand.iter().any(|group| group.scope == *scope));
        }
    }
}

/// What each group may ask for of a batch: no less than an equal part of it, and what others leave of theirs. Where the
/// batch is smaller than the number of groups, chance decides who comes first.
fn grant(batch: u32, wanted: &[u32]) -> Vec<u32> {
    let waiting = wanted.iter().enumerate().filter(|(_, wanted)| **wanted > 0);
    let mut order: Vec<usize> = waiting.map(|(at, _)| at).collect();
    fastrand::shuffle(&mut order);
    let part = u32::try_from(order.len()).map_or(1, |groups| batch / groups.max(1));
    let (mut left, mut granted) = (batch, vec![0; wanted.len()]);
    for most in [part.max(1), batch] {
        for at in &order {
            let (Some(granted), Some(wanted)) = (granted.get_mut(*at), wanted.get(*at)) else {
                continue;
            };
            let more = (*wanted - *granted).min(most).min(left);
            *granted += more;
            left -= more;
        }
    }
    granted
}

/// How much each lane may give, the most urgent one first: one that may have plenty takes all that is left, one of which
/// nothing is known may be empty, or one that a limit of its own may cut to less, leaves it to the next ones.
fn spread(lanes: &[Candidate], slots: i32) -> Vec<i32> {
    let (mut left, mut unknown) = (slots, slots.saturating_mul(UNKNOWN));
    let limits = lanes.iter().map(|lane| {
        if lane.deep && !lane.has_own_limit() {
            return std::mem::take(&mut left);
        }
        let limit = left.min(unknown.max(1));
        unknown = unknown.saturating_sub(limit);
        limit
    });
    limits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lane_with_a_limit_of_its_own_leaves_slots_to_those_without() {
        let lane = |route, limits| Candidate {
            lane: (route, 1),
            tenant: Tenant {
                namespace: 1,
                weight: 1,
            },
            limits,
            place: DateTime::UNIX_EPOCH,
            deep: true,
        };
        let of = |limit| spread(&[lane(1, vec![limit]), lane(2, Vec::new())], 8);
        assert_eq!(of(Limited::Route(1)), [8, 8]);
        assert_eq!(of(Limited::Namespace(1)), [8, 0], "it binds both");
    }

    proptest! {
        #[test]
        fn a_batch_is_used_up_and_every_group_gets_its_part(wanted in prop::collection::vec(0_u32..900, 0..9), batch in 1_u32..600) {
            let granted = grant(batch, &wanted);
            prop_assert_eq!(granted.iter().sum::<u32>(), wanted.iter().sum::<u32>().min(batch));
            let groups = u32::try_from(wanted.iter().filter(|wanted| **wanted > 0).count()).unwrap();
            for (granted, wanted) in granted.iter().zip(&wanted) {
                prop_assert!(granted <= wanted);
                prop_assert!(*wanted == 0 || *granted >= (*wanted).min(batch / groups));
            }
        }

        #[test]
        fn what_is_locked_in_vain_is_bounded(deep in prop::collection::vec(any::<bool>(), 1..60), slots in 1_i32..600) {
            let lanes: Vec<Candidate> = deep
                .iter()
                .map(|deep| Candidate {
                    lane: (1, 1),
                    tenant: Tenant { namespace: 1, weight: 1 },
                    limits: Vec::new(),
                    place: DateTime::UNIX_EPOCH,
                    deep: *deep,
                })
                .collect();
            let limits = spread(&lanes, slots);
            prop_assert_eq!(limits.len(), lanes.len());
            prop_assert!(limits.iter().all(|limit| (0..=slots).contains(limit)));
            prop_assert_eq!(limits[0], slots);
            let all: i32 = limits.iter().sum();
            prop_assert!(all <= slots * (1 + UNKNOWN) + i32::try_from(lanes.len()).unwrap());
        }
    }
}
