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

/// A route, and the slot group that it goes to.
type Known<'r> = (&'r Route, Option<usize>);

/// Candidates of one slot group by tenant.
type Waiting = BTreeMap<NamespaceId, Vec<Candidate>>;

impl Lanes {
    /// What a sweep asks for: the free slots of each group divided among the tenants with due work that it serves, at
    /// most `batch` rows in all. A lane that several groups serve goes to the one with the most free slots, so that no
    /// row is asked for twice.
    pub(in crate::dispatch) fn plan<'r>(
        &mut self,
        demand: &[GroupDemand],
        target: impl Fn(RouteId) -> Option<(&'r Route, Nodes<'r>)>,
        batch: i32,
        now: Instant,
    ) -> ClaimRequest {
        let mut left = u32::try_from(batch).unwrap_or(0);
        let free = demand.iter().map(|group| {
            let granted = group.free.min(left);
            left -= granted;
            granted
        });
        let free: Vec<u32> = free.collect();
        self.take_back();
        self.forget_lines(demand);
        let (groups, waiting) = self.candidates(demand, &free, target, now);
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
        free: &[u32],
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
                    let serving =
                        demand
                            .iter()
                            .zip(free)
                            .enumerate()
                            .filter(|(_, (group, free))| {
                                **free > 0 && !rests && group.scope.serves(route, nodes)
                            });
                    let most = serving.max_by_key(|(_, (_, free))| **free);
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

/// How much each lane may give, the most urgent one first: one that may have plenty takes all that is left, one of which
/// nothing is known may be empty and leaves it to the next ones.
fn spread(lanes: &[Candidate], slots: i32) -> Vec<i32> {
    let (mut left, mut unknown) = (slots, slots.saturating_mul(UNKNOWN));
    let limits = lanes.iter().map(|lane| {
        if lane.deep {
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

    proptest! {
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
