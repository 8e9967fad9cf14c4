//! How the free slots of a pool of workers are divided among the tenants with due work: start-time fair queueing.
//!
//! Each tenant has a tag, the place in virtual time at which its next task may start; a start moves it on by one over
//! the tenant's weight. The tenant with the lowest tag is next. One that had nothing to do for a while starts at the
//! present virtual time, so it is next at once and has saved nothing up. At equal weights no tenant starts a second
//! task before every other one that waits has started one, which bounds the wait for a first start: the longest
//! running task times the number of tenants that wait over the number of slots, rounded up.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::id::NamespaceId;

/// What one start costs a tenant of weight 1. Divided by the largest weight it is still a thousand units, so that
/// rounding shifts no share by more than a thousandth.
const START: u64 = 1_000_000;
/// Tenants that are remembered without need; beyond them, those that have no lead are forgotten.
const KEPT: usize = 4096;

/// One who waits for slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Who.
    pub namespace: NamespaceId,
    /// Its share relative to others, from 1.
    pub weight: u32,
}

impl Tenant {
    fn cost(self) -> u64 {
        START / u64::from(self.weight.clamp(1, 1000))
    }
}

/// What a tenant was given, and later took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Whose.
    pub tenant: Tenant,
    /// Slots that it was given.
    pub slots: u32,
}

/// The lowest is next: where its next task may start, where its last one ended, when that started, a fixed order, and
/// which one it is.
type Rank = (u64, u64, u64, u64, usize);

/// The order of tenants at one pool of workers.
#[derive(Clone, Debug, Default)]
pub struct Line {
    tags: HashMap<NamespaceId, Tag>,
    /// The start tag of the last start.
    virtual_time: u64,
    /// Counts starts: of tenants at the same place, the one that started longest ago is next.
    starts: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tag {
    finish: u64,
    started: u64,
}

impl Line {
    /// Divides `slots` among tenants who each could use all of them; the answer has the next tenant first and leaves
    /// out those who get none. `seed` orders those that have never started, so that replicas don't all begin with
    /// the same one.
    pub fn divide(&mut self, tenants: &[Tenant], slots: u32, seed: u64) -> Vec<Share> {
        self.forget(tenants);
        let mut heap: BinaryHeap<Reverse<Rank>> = tenants
            .iter()
            .enumerate()
            .map(|(at, tenant)| {
                let tag = self
                    .tags
                    .get(&tenant.namespace)
                    .copied()
                    .unwrap_or_default();
                Reverse(self.rank(tag, scatter(tenant.namespace, seed), at))
            })
            .collect();
        let mut order: Vec<usize> = Vec::new();
        let mut shares: HashMap<usize, u32> = HashMap::new();
        let mut left = slots;
        while left > 0 {
            let Some(Reverse((start, _, _, scattered, at))) = heap.pop() else {
                break;
            };
            let Some(tenant) = tenants.get(at) else {
                continue;
            };
            // The last one of the line takes what is left in one step.
            let taken = if heap.is_empty() { left } else { 1 };
            left -= taken;
            self.starts += 1;
            let tag = Tag {
                finish: start + tenant.cost() * u64::from(taken),
                started: self.starts,
            };
            self.tags.insert(tenant.namespace, tag);
            let share = shares.entry(at).or_insert_with(|| {
                order.push(at);
                0
            });
            *share += taken;
            heap.push(Reverse(self.rank(tag, scattered, at)));
        }
        let share = |at: usize| {
            Some(Share {
                tenant: *tenants.get(at)?,
                slots: *shares.get(&at)?,
            })
        };
        order.into_iter().filter_map(share).collect()
    }

    fn rank(&self, tag: Tag, scattered: u64, at: usize) -> Rank {
        let start = tag.finish.max(self.virtual_time);
        (start, tag.finish, tag.started, scattered, at)
    }

    /// Takes back what was given and not used: whoever had less to do than it was given is not charged for it.
    pub fn settle(&mut self, share: Share, used: u32) {
        let unused = share.slots.saturating_sub(used);
        let Some(tag) = self.tags.get_mut(&share.tenant.namespace) else {
            return;
        };
        let cost = share.tenant.cost();
        tag.finish = tag.finish.saturating_sub(cost * u64::from(unused));
        if used > 0 {
            self.virtual_time = self.virtual_time.max(tag.finish.saturating_sub(cost));
        }
    }

    /// Who has no lead over the others needs no memory; those who wait keep theirs for its order.
    fn forget(&mut self, waiting: &[Tenant]) {
        if self.tags.len() > KEPT + 2 * waiting.len() {
            let now = self.virtual_time;
            self.tags.retain(|_, tag| tag.finish > now);
        }
    }
}

/// A fixed order that looks like none.
fn scatter(namespace: NamespaceId, seed: u64) -> u64 {
    (u64::from(namespace.unsigned_abs()) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn tenants(weights: &[u32]) -> Vec<Tenant> {
        let numbered = (1..).zip(weights);
        numbered
            .map(|(namespace, weight)| Tenant {
                namespace,
                weight: *weight,
            })
            .collect()
    }

    /// One division, all of it used.
    fn use_all(line: &mut Line, tenants: &[Tenant], slots: u32) -> BTreeMap<NamespaceId, u32> {
        let shares = line.divide(tenants, slots, 7);
        for share in &shares {
            line.settle(*share, share.slots);
        }
        let taken = shares
            .iter()
            .map(|share| (share.tenant.namespace, share.slots));
        taken.collect()
    }

    #[test]
    fn one_tenant_gets_all() {
        let mut line = Line::default();
        assert_eq!(use_all(&mut line, &tenants(&[1]), 500), [(1, 500)].into());
    }

    #[test]
    fn more_tenants_than_slots_take_turns() {
        let (mut line, all) = (Line::default(), tenants(&[1; 64]));
        let mut started: BTreeMap<NamespaceId, u32> = BTreeMap::new();
        for round in 1..=12 {
            for (namespace, slots) in use_all(&mut line, &all, 16) {
                *started.entry(namespace).or_default() += slots;
            }
            if round % 4 == 0 {
                assert_eq!(started.len(), 64);
                assert!(
                    started.values().all(|starts| *starts == round / 4),
                    "{started:?}"
                );
            }
        }
    }

    #[test]
    fn a_newcomer_is_next_and_has_saved_nothing_up() {
        let (mut line, all) = (Line::default(), tenants(&[1, 1]));
        for _ in 0..100 {
            use_all(&mut line, &all[..1], 10);
        }
        assert_eq!(use_all(&mut line, &all, 1), [(2, 1)].into());
        let after = use_all(&mut line, &all, 20);
        assert!(after[&1].abs_diff(after[&2]) <= 1, "{after:?}");
    }

    #[test]
    fn a_tenant_that_returns_each_time_it_is_served_does_not_displace_those_that_wait() {
        // As many of them as slots: each has one task, and the next one when that has ended.
        let (mut line, all) = (Line::default(), tenants(&[1; 20]));
        let mut starts = 0;
        for _ in 0..10 {
            starts += use_all(&mut line, &all, 10).get(&20).copied().unwrap_or(0);
        }
        assert_eq!(starts, 5);
    }

    #[test]
    fn what_is_not_used_is_not_charged() {
        let (mut line, all) = (Line::default(), tenants(&[1, 1]));
        for _ in 0..50 {
            for share in line.divide(&all, 10, 7) {
                let used = if share.tenant.namespace == 1 {
                    1
                } else {
                    share.slots
                };
                line.settle(share, used.min(share.slots));
            }
        }
        // The first one has used less all the time: all of its share is there when it needs it.
        let after = use_all(&mut line, &all, 10);
        assert!(after[&1] >= 5, "{after:?}");
    }

    #[test]
    fn those_without_a_lead_are_forgotten() {
        let mut line = Line::default();
        let all = tenants(&vec![1; 3 * KEPT]);
        for one in all.chunks(1) {
            use_all(&mut line, one, 1);
            // Virtual time passes them by.
            use_all(&mut line, &all[..1], 3);
        }
        assert!(line.tags.len() <= KEPT + 3, "{}", line.tags.len());
    }

    proptest! {
        #[test]
        fn all_slots_are_given_and_shares_follow_the_weights(
            weights in prop::collection::vec(1_u32..=20, 1..30),
            slots in prop::collection::vec(1_u32..=40, 1..60),
        ) {
            let (mut line, all) = (Line::default(), tenants(&weights));
            let mut started: BTreeMap<NamespaceId, u32> = BTreeMap::new();
            for free in &slots {
                let taken = use_all(&mut line, &all, *free);
                prop_assert_eq!(taken.values().sum::<u32>(), *free);
                for (namespace, slots) in taken {
                    *started.entry(namespace).or_default() += slots;
                }
            }
            // By weight, each is at most one start (and the rounding) away from every other one.
            let by_weight = |tenant: &Tenant| {
                let starts = started.get(&tenant.namespace).copied().unwrap_or(0);
                (f64::from(starts) / f64::from(tenant.weight), 1.0 / f64::from(tenant.weight))
            };
            for one in &all {
                for other in &all {
                    let ((a, step_a), (b, step_b)) = (by_weight(one), by_weight(other));
                    prop_assert!((a - b).abs() <= step_a.max(step_b) + step_a.min(step_b) + 0.01, "{} {}", a, b);
                }
            }
        }

        #[test]
        fn nobody_who_waits_is_passed_over_for_longer_than_a_round(
            crowd in 1_usize..50,
            free in prop::collection::vec(1_u32..=8, 10..80),
            gives in any::<u64>(),
        ) {
            let (mut line, all) = (Line::default(), tenants(&vec![1; crowd + 1]));
            // The others come and go; the last one waits all the time.
            let mut passed = 0_u32;
            for (round, slots) in free.iter().enumerate() {
                let here: Vec<Tenant> = all
                    .iter()
                    .filter(|one| {
                        let number = u32::try_from(one.namespace).unwrap();
                        one.namespace == all[crowd].namespace || gives.rotate_left(number + u32::try_from(round).unwrap()) & 1 == 1
                    })
                    .copied()
                    .collect();
                let taken = use_all(&mut line, &here, *slots);
                if taken.contains_key(&all[crowd].namespace) {
                    passed = 0;
                } else {
                    passed += slots;
                    prop_assert!(passed <= u32::try_from(crowd).unwrap(), "{} of {}", passed, crowd);
                }
            }
        }
    }
}
