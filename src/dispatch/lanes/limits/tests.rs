//! Tenants, weights, quotas and ageing, as a sweep sees them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::Lanes;
use super::super::tests::{at, claimed, due, group, lane, route};
use super::{KEPT, LONG_WAIT, Left, Limits, SHORT_WAIT};
use crate::domain::ageing::Ageing;
use crate::domain::id::RouteId;
use crate::domain::placement::Nodes;
use crate::domain::quota::{Limited, Usage};
use crate::domain::rate::{Bucket, Rate};
use crate::domain::route::Route;
use crate::store::claim::{ClaimRequest, Claimed};
use crate::store::routes::{DueLane, DuePage};

/// One route a tenant, numbered alike.
fn tenant(id: RouteId, weight: u32, quota: Option<i32>) -> Route {
    Route {
        namespace_id: id,
        namespace: format!("n{id}"),
        weight,
        namespace_quota: quota,
        ..route(id, "x")
    }
}

/// Tenants with work at priority 1, and what a sweep with so many free slots asks of them.
fn ask_of(lanes: &mut Lanes, tenants: &[Route], free: u32, now: Instant) -> ClaimRequest {
    let target = |id: RouteId| {
        let route = tenants.iter().find(|route| route.id == id)?;
        Some((route, Nodes::Any))
    };
    lanes.plan(&[group(&["x"], free)], target, 500, now)
}

fn all_due(tenants: &[Route]) -> DuePage {
    let lanes = tenants.iter().map(|route| DueLane {
        route: route.id,
        ..lane(1, 0)
    });
    due(&lanes.collect::<Vec<_>>())
}

/// So many tasks of one tenant are claimed under its quota.
fn usage_of(namespace: i32, quota: i32, claimed: i64) -> Usage {
    Usage {
        of: Limited::Namespace(namespace),
        quota: Some(quota),
        claimed,
        oldest: None,
        bucket: None,
        at: at(0),
    }
}

/// All that was asked for, one row after the other.
fn take_all(request: &ClaimRequest) -> Claimed {
    let mut left = request.shares.clone();
    let mut rows = Vec::new();
    for lane in &request.lanes {
        let taken = lane.limit.min(left[lane.share]);
        left[lane.share] -= taken;
        rows.extend((0..taken).map(|_| (lane.route, lane.priority, 0)));
    }
    claimed(1, &rows)
}

#[test]
fn more_tenants_than_rows_in_a_batch_all_get_their_turn() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let tenants: Vec<Route> = (1..=64).map(|id| tenant(id, 1, None)).collect();
    lanes.note_due(&all_due(&tenants), now);
    let mut served = BTreeSet::new();
    for _ in 0..4 {
        let request = ask_of(&mut lanes, &tenants, 16, now);
        assert_eq!(request.lanes.len(), 16);
        served.extend(request.lanes.iter().map(|lane| lane.route));
        lanes.learn(&request, &take_all(&request), now);
    }
    assert_eq!(served.len(), 64);
}

#[test]
fn what_a_tenant_leaves_is_handed_round_by_the_next_sweep() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let tenants = [tenant(1, 1, None), tenant(2, 1, None)];
    lanes.note_due(&all_due(&tenants), now);
    let request = ask_of(&mut lanes, &tenants, 20, now);
    assert_eq!(request.shares, [10, 10]);
    let mut rows = vec![(1, 1, 0); 10];
    rows.push((2, 1, 0));
    let learned = lanes.learn(&request, &claimed(1, &rows), now);
    assert_eq!(learned.first_starts.len(), 2);
    let request = ask_of(&mut lanes, &tenants, 9, now);
    assert_eq!(request.shares, [9], "the second one has nothing more");
    assert!(
        lanes
            .learn(&request, &take_all(&request), now)
            .first_starts
            .is_empty()
    );
}

#[test]
fn shares_follow_the_weights() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let tenants = [tenant(1, 1, None), tenant(2, 3, None)];
    lanes.note_due(&all_due(&tenants), now);
    let mut taken = [0; 2];
    for _ in 0..100 {
        let request = ask_of(&mut lanes, &tenants, 1, now);
        let got = take_all(&request);
        taken[usize::try_from(got.claims[0].route - 1).unwrap()] += 1;
        lanes.learn(&request, &got, now);
    }
    assert!((24..=26).contains(&taken[0]), "{taken:?}");
}

#[test]
fn a_waiting_lane_moves_up_and_a_deep_one_leaves_nothing_to_lock_in_vain() {
    let now = Instant::now();
    let x = [tenant(1, 1, None)];
    for (step, first) in [(Some(Duration::from_secs(30)), 3), (None, 0)] {
        let mut lanes = Lanes::new(Ageing::new(step));
        let mut old = lane(3, 0);
        old.visible_after = at(-100_000);
        lanes.note_due(&due(&[lane(0, 0), old]), now);
        let request = ask_of(&mut lanes, &x, 5, now);
        assert_eq!(request.lanes[0].priority, first);
        let learned = lanes.learn(&request, &take_all(&request), now);
        assert_eq!(learned.aged, if first == 3 { 5 } else { 0 });
        let request = ask_of(&mut lanes, &x, 5, now);
        let limits: Vec<i32> = request.lanes.iter().map(|lane| lane.limit).collect();
        assert_eq!(limits, if first == 3 { vec![5, 5] } else { vec![5] });
    }
}

#[test]
fn a_quota_that_is_used_up_rests_until_it_is_freed() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let tenants = [tenant(1, 1, Some(2)), tenant(2, 1, None)];
    lanes.note_due(&all_due(&tenants), now);
    let request = ask_of(&mut lanes, &tenants, 8, now);
    assert_eq!(request.quotas.len(), 1);
    let usage = usage_of(1, 2, 1);
    let mut got = claimed(1, &[(1, 1, 0), (2, 1, 0), (2, 1, 1), (2, 1, 2), (2, 1, 3)]);
    got.usages = vec![usage];
    let learned = lanes.learn(&request, &got, now);
    assert_eq!(learned.used_up, 1);
    assert!(lanes.held_back(now));

    let request = ask_of(&mut lanes, &tenants, 8, now);
    assert!(request.quotas.is_empty());
    assert_eq!(request.shares, [8], "the other one gets all");
    lanes.learn(&request, &take_all(&request), now);

    lanes.freed(1, 1, false);
    assert!(!lanes.held_back(now));
    let request = ask_of(&mut lanes, &tenants, 8, now);
    assert_eq!(
        request.quotas.len(),
        1,
        "its lane has not been taken for empty"
    );
}

#[test]
fn a_quota_that_others_keep_taking_is_waited_for() {
    let (mut lanes, mut now) = (Lanes::default(), Instant::now());
    let tenants = [tenant(1, 1, Some(2))];
    lanes.note_due(&all_due(&tenants), now);
    for _ in 0..3 {
        let request = ask_of(&mut lanes, &tenants, 8, now);
        assert_eq!((request.quotas.len(), request.awaited), (1, None));
        let lost = Claimed {
            lost: vec![Limited::Namespace(1)],
            ..Claimed::default()
        };
        assert_eq!(lanes.learn(&request, &lost, now).lost, 1);
        assert!(ask_of(&mut lanes, &tenants, 8, now).lanes.is_empty());
        now = lanes.next_rested(now).unwrap();
    }
    let request = ask_of(&mut lanes, &tenants, 8, now);
    assert_eq!(request.awaited, Some((Limited::Namespace(1), LONG_WAIT)));
}

#[test]
fn a_quota_of_which_a_task_has_ended_here_is_waited_for_until_a_look_has_used_it() {
    let (mut lanes, mut now) = (Lanes::default(), Instant::now());
    let tenants = [tenant(1, 1, Some(2)), tenant(2, 1, Some(2))];
    lanes.note_due(&all_due(&tenants), now);
    let lost = Claimed {
        lost: vec![Limited::Namespace(1)],
        ..Claimed::default()
    };
    let request = ask_of(&mut lanes, &tenants, 8, now);
    lanes.learn(&request, &lost, now);
    // The rest after a loss is over with that, and a wait that was in vain begins one.
    for _ in 0..2 {
        lanes.freed(1, 1, true);
        let request = ask_of(&mut lanes, &tenants, 8, now);
        assert_eq!(request.awaited, Some((Limited::Namespace(1), SHORT_WAIT)));
        lanes.learn(&request, &lost, now);
        assert!(lanes.left_over(now).is_empty());
        let meanwhile = ask_of(&mut lanes, &tenants, 8, now);
        assert_eq!(meanwhile.awaited, None);
        assert!(meanwhile.lanes.iter().all(|lane| lane.namespace == 2));
    }
    // Too often in vain: it rests whatever ends here, so that others have their looks, and is waited for behind that.
    lanes.freed(1, 1, true);
    let meanwhile = ask_of(&mut lanes, &tenants, 8, now);
    assert!(meanwhile.lanes.iter().all(|lane| lane.namespace == 2));
    now = lanes.next_rested(now).unwrap();
    let request = ask_of(&mut lanes, &tenants, 8, now);
    assert_eq!(request.awaited, Some((Limited::Namespace(1), LONG_WAIT)));
    let mut got = take_all(&request);
    got.usages = vec![usage_of(1, 2, 0)];
    lanes.learn(&request, &got, now);
    assert!(lanes.left_over(now).is_empty());
    lanes.freed(1, 1, false);
    assert_eq!(ask_of(&mut lanes, &tenants, 8, now).awaited, None);
}

#[test]
fn a_claim_takes_a_bounded_number_of_quotas_and_the_others_come_next() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let tenants: Vec<Route> = (1..=80).map(|id| tenant(id, 1, Some(9))).collect();
    lanes.note_due(&all_due(&tenants), now);
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let request = ask_of(&mut lanes, &tenants, 80, now);
        assert!(request.quotas.len() <= 32);
        seen.extend(request.lanes.iter().map(|lane| lane.route));
        let mut got = take_all(&request);
        got.usages = request
            .quotas
            .iter()
            .map(|ask| Usage {
                of: ask.of,
                ..usage_of(0, 9, 0)
            })
            .collect();
        lanes.learn(&request, &got, now);
    }
    assert_eq!(seen.len(), 80);
}

#[test]
fn a_quota_that_is_free_is_passed_on_unless_it_is_used_here_again() {
    let (mut lanes, mut now) = (Lanes::default(), Instant::now());
    let tenants = [tenant(1, 1, Some(2))];
    lanes.note_due(&all_due(&tenants), now);
    let look = |lanes: &mut Lanes, now, rows: &[(RouteId, i16, i64)], lost: bool| {
        let request = ask_of(lanes, &tenants, 8, now);
        let usage = usage_of(1, 2, 1);
        let mut got = claimed(1, rows);
        if lost {
            got.lost = vec![usage.of];
        } else {
            got.usages = vec![usage];
        }
        lanes.learn(&request, &got, now);
        lanes.left_over(now)
    };
    // Used again.
    lanes.freed(1, 1, true);
    assert!(look(&mut lanes, now, &[(1, 1, 0)], false).is_empty());
    lanes.freed(1, 1, false);
    assert!(lanes.left_over(now).is_empty(), "others have said so");
    // In other hands: it is looked at again before it is passed on.
    lanes.freed(1, 1, true);
    assert!(look(&mut lanes, now, &[], true).is_empty());
    now = lanes.next_rested(now).unwrap();
    assert_eq!(look(&mut lanes, now, &[], false), [1]);
    assert!(lanes.left_over(now).is_empty(), "once");
    // No slot is free: nobody looks.
    lanes.freed(1, 1, true);
    assert_eq!(lanes.left_over(now), [1]);
}

#[test]
fn a_lane_without_tokens_rests_until_the_time_of_the_bucket_whatever_ends_meanwhile() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let rated = Route {
        namespace_rated: true,
        ..tenant(1, 1, None)
    };
    let tenants = [rated, tenant(2, 1, None)];
    lanes.note_due(&all_due(&tenants), now);
    let usage = |rate| Usage {
        of: Limited::Namespace(1),
        quota: None,
        claimed: 0,
        oldest: None,
        bucket: Some(Bucket {
            rate,
            full_at: None,
        }),
        at: at(0),
    };
    let empty = |lanes: &mut Lanes, rate, now| {
        let request = ask_of(lanes, &tenants, 8, now);
        assert_eq!(request.quotas.len(), 1);
        let mut got = claimed(1, &[(1, 1, 0), (1, 1, 1)]);
        got.usages = vec![usage(rate)];
        got.counted = Some(now);
        assert_eq!(lanes.learn(&request, &got, now).throttled, 1);
    };
    empty(&mut lanes, Rate::new(4, 1000, Some(2)), now);
    let next = now + Duration::from_millis(250);
    assert_eq!(lanes.next_rested(now), Some(next));
    lanes.freed(1, 1, true);
    assert!(lanes.left_over(now).is_empty(), "nobody has a use for it");
    assert!(!lanes.held_back(now), "nor can anybody help");
    lanes.note_due(&all_due(&tenants), now);
    let request = ask_of(&mut lanes, &tenants, 8, now + Duration::from_millis(249));
    assert_eq!((request.quotas.len(), request.lanes.len()), (0, 1));
    lanes.learn(&request, &take_all(&request), now);
    assert_eq!(ask_of(&mut lanes, &tenants, 8, next).quotas.len(), 1);

    empty(&mut lanes, Rate::new(1, 3_600_000, Some(2)), next);
    assert_eq!(
        lanes.next_rested(next),
        Some(next + Duration::from_secs(5)),
        "a word that the rate was raised may be lost"
    );
    lanes.settings_changed();
    assert_eq!(lanes.next_rested(next), None);
    assert_eq!(ask_of(&mut lanes, &tenants, 8, next).quotas.len(), 1);
}

#[test]
fn a_quota_that_has_rested_is_forgotten_with_many_others() {
    let (mut limits, mut now) = (Limits::default(), Instant::now());
    for namespace in 0..i32::try_from(3 * KEPT).unwrap() {
        now += Duration::from_millis(1);
        let used_up = usage_of(namespace, 1, 1);
        assert_eq!(limits.count(&used_up, 0, now), Left::NoQuota);
        assert!(limits.rest(used_up.of, now));
    }
    assert!(limits.known.len() <= KEPT + 1, "{}", limits.known.len());
}
