//! What is left of limits: of quotas (how many tasks of a namespace or route may be claimed at the same time) and of rates
//! (how many may start in a time), both over all replicas.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use super::id::{NamespaceId, RouteId};
use super::rate::Bucket;

/// What a limit is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limited {
    /// A namespace, over all its routes.
    Namespace(NamespaceId),
    /// One route.
    Route(RouteId),
}

/// Quota and rate as the database has them, and how far they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Of what.
    pub of: Limited,
    /// Tasks that may be claimed at the same time; none for any number.
    pub quota: Option<i32>,
    /// Tasks that are, by all replicas; not counted without a quota.
    pub claimed: i64,
    /// When the first of these was claimed.
    pub oldest: Option<DateTime<Utc>>,
    /// The tokens of its rate, if it has one.
    pub bucket: Option<Bucket>,
    /// The database's clock at the count.
    pub at: DateTime<Utc>,
}

impl Usage {
    /// How many more may be claimed; none for any number.
    #[must_use]
    pub fn left(&self) -> Option<i32> {
        let tokens = self.bucket.map(|bucket| bucket.tokens(self.at));
        self.quota_left().into_iter().chain(tokens).min()
    }

    /// The same by the quota alone. An adoption may have gone beyond it.
    #[must_use]
    pub fn quota_left(&self) -> Option<i32> {
        let quota = i64::from(self.quota?);
        Some(i32::try_from((quota - self.claimed).max(0)).unwrap_or(i32::MAX))
    }
}

/// A lane, as far as quotas are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanting {
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its route.
    pub route: RouteId,
    /// Rows that it may give at most.
    pub limit: i32,
    /// A quota or a rate stands above it: without a count of that it gives nothing.
    pub limited: bool,
}

/// What a lane may give, and under which quotas and rates that was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fitted {
    /// Rows at most.
    pub limit: i32,
    /// The quota of its namespace.
    pub namespace_quota: Option<i32>,
    /// The quota of its route.
    pub route_quota: Option<i32>,
    /// The rate of its namespace was heeded.
    pub namespace_rated: bool,
    /// That of its route was.
    pub route_rated: bool,
}

/// Cuts the limits of lanes, the most urgent ones first, so that all of them together stay within what is left of the
/// quotas and rates that are held. A lane under one that somebody else holds gives nothing.
#[must_use]
pub fn fit(lanes: &[Wanting], held: &[Usage], lost: &[Limited]) -> Vec<Fitted> {
    let known: HashMap<Limited, &Usage> = held.iter().map(|usage| (usage.of, usage)).collect();
    let mut left: HashMap<Limited, i32> = held
        .iter()
        .filter_map(|usage| Some((usage.of, usage.left()?)))
        .collect();
    let fitted = lanes.iter().map(|lane| {
        if !lane.limited {
            return Fitted {
                limit: lane.limit,
                ..Fitted::default()
            };
        }
        let of = [
            Limited::Namespace(lane.namespace),
            Limited::Route(lane.route),
        ];
        if of.iter().any(|of| lost.contains(of)) {
            return Fitted::default();
        }
        let limit = of
            .iter()
            .filter_map(|of| left.get(of).copied())
            .fold(lane.limit, i32::min);
        for of in &of {
            if let Some(left) = left.get_mut(of) {
                *left -= limit;
            }
        }
        let [namespace, route] = of.map(|of| known.get(&of));
        let rated = |usage: Option<&&Usage>| usage.is_some_and(|usage| usage.bucket.is_some());
        Fitted {
            limit,
            namespace_quota: namespace.and_then(|usage| usage.quota),
            route_quota: route.and_then(|usage| usage.quota),
            namespace_rated: rated(namespace),
            route_rated: rated(route),
        }
    });
    fitted.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::rate::Rate;

    fn usage(of: Limited, quota: Option<i32>, claimed: i64) -> Usage {
        Usage {
            of,
            quota,
            claimed,
            oldest: None,
            bucket: None,
            at: DateTime::UNIX_EPOCH,
        }
    }

    fn lane(namespace: NamespaceId, route: RouteId, limit: i32) -> Wanting {
        Wanting {
            namespace,
            route,
            limit,
            limited: true,
        }
    }

    #[test]
    fn urgent_lanes_come_first_and_the_sum_stays_within_the_quota() {
        let held = [usage(Limited::Namespace(1), Some(10), 4)];
        let fitted = fit(&[lane(1, 1, 4), lane(1, 2, 4), lane(1, 3, 4)], &held, &[]);
        let limits: Vec<i32> = fitted.iter().map(|one| one.limit).collect();
        assert_eq!(limits, [4, 2, 0]);
        assert!(
            fitted
                .iter()
                .all(|one| one.namespace_quota == Some(10) && one.route_quota.is_none())
        );
    }

    #[test]
    fn what_is_claimed_beyond_the_quota_leaves_nothing() {
        let held = [usage(Limited::Route(3), Some(2), 5)];
        assert_eq!(fit(&[lane(1, 3, 9)], &held, &[])[0].limit, 0);
    }

    #[test]
    fn tokens_and_quota_bound_together_and_a_rate_is_said_to_be_heeded() {
        let three = Bucket {
            rate: Rate::new(1, 1000, Some(3)),
            full_at: None,
        };
        let rated = |of, quota| Usage {
            bucket: Some(three),
            ..usage(of, quota, 5)
        };
        let left = |quota| rated(Limited::Route(1), quota).left();
        assert_eq!(
            [left(None), left(Some(7)), left(Some(9))],
            [Some(3), Some(2), Some(3)]
        );
        let held = [
            rated(Limited::Namespace(1), None),
            usage(Limited::Route(2), Some(9), 0),
        ];
        let fitted = fit(&[lane(1, 2, 2), lane(1, 3, 2)], &held, &[]);
        assert_eq!(
            fitted.iter().map(|one| one.limit).collect::<Vec<_>>(),
            [2, 1]
        );
        assert!(
            fitted
                .iter()
                .all(|one| one.namespace_rated && !one.route_rated)
        );
        assert_eq!(
            (fitted[0].route_quota, fitted[0].namespace_quota),
            (Some(9), None)
        );
    }

    #[test]
    fn a_quota_that_was_lifted_or_lost_is_told_apart() {
        let held = [usage(Limited::Namespace(1), None, 500)];
        let fitted = fit(
            &[lane(1, 1, 9), lane(2, 2, 9)],
            &held,
            &[Limited::Namespace(2)],
        );
        assert_eq!(
            fitted[0],
            Fitted {
                limit: 9,
                ..Fitted::default()
            }
        );
        assert_eq!(fitted[1].limit, 0);
    }

    proptest! {
        #[test]
        fn no_quota_is_exceeded_and_what_is_left_is_used(
            lanes in prop::collection::vec((1_i32..4, 1_i32..9, 0_i32..50), 0..40),
            quotas in prop::collection::vec((any::<bool>(), 1_i32..9, prop::option::of(0_i32..60), 0_i64..60), 0..12),
        ) {
            let lanes: Vec<Wanting> = lanes
                .iter()
                .map(|(namespace, route, limit)| lane(*namespace, route * 10 + namespace, *limit))
                .collect();
            let mut held: Vec<Usage> = quotas
                .iter()
                .map(|(whole, number, quota, claimed)| {
                    let of = if *whole { Limited::Namespace(*number) } else { Limited::Route(*number * 10 + 1) };
                    usage(of, *quota, *claimed)
                })
                .collect();
            held.sort_by_key(|usage| usage.of);
            held.dedup_by_key(|usage| usage.of);
            let fitted = fit(&lanes, &held, &[]);
            let given = |of: Limited| -> i32 {
                lanes
                    .iter()
                    .zip(&fitted)
                    .filter(|(lane, _)| of == Limited::Namespace(lane.namespace) || of == Limited::Route(lane.route))
                    .map(|(_, fitted)| fitted.limit)
                    .sum()
            };
            for usage in &held {
                if let Some(left) = usage.left() {
                    prop_assert!(given(usage.of) <= left);
                }
            }
            for (lane, fitted) in lanes.iter().zip(&fitted) {
                prop_assert!((0..=lane.limit).contains(&fitted.limit));
                // A lane that was cut stands under a quota that is used up.
                let used_up = |usage: &Usage| {
                    let above = [Limited::Namespace(lane.namespace), Limited::Route(lane.route)];
                    above.contains(&usage.of) && usage.left() == Some(given(usage.of))
                };
                prop_assert!(fitted.limit == lane.limit || held.iter().any(used_up));
            }
        }
    }
}
