use std::collections::BTreeSet;

use super::*;
use crate::domain::id::Token;
use crate::domain::placement::Nodes;
use crate::domain::route::Route;
use crate::domain::scope::{Namespaces, Scope};
use crate::domain::task::Claim;
use crate::fleet::GroupDemand;
use crate::store::claim::Claimed;
use crate::store::routes::DueLane;

pub(super) fn route(id: RouteId, task_type: &str) -> Route {
    Route {
        id,
        namespace: "default".into(),
        task_queue: "q".into(),
        task_type: task_type.into(),
        node: String::new(),
        ..Route::default()
    }
}

pub(super) fn group(types: &[&str], free: u32) -> GroupDemand {
    let scope = Scope {
        namespaces: Namespaces::All,
        task_queue: "q".into(),
        task_types: types
            .iter()
            .map(ToString::to_string)
            .collect::<BTreeSet<_>>(),
        node: String::new(),
    };
    GroupDemand {
        scope: Arc::new(scope),
        free,
    }
}

/// A lane of the first route whose first row is due in so many milliseconds.
pub(super) fn lane(priority: i16, due_in: u64) -> DueLane {
    DueLane {
        route: 1,
        priority,
        head: 1,
        visible_after: at(i64::try_from(due_in).unwrap()),
        due_in: Duration::from_millis(due_in),
        paused: false,
    }
}

pub(super) fn due(lanes: &[DueLane]) -> DuePage {
    DuePage {
        lanes: lanes.to_vec(),
        at: Some(at(0)),
        more: false,
    }
}

pub(super) fn at(milliseconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(1_800_000_000_000 + milliseconds).unwrap()
}

pub(super) fn claimed(now: i64, rows: &[(RouteId, i16, i64)]) -> Claimed {
    let claims = rows
        .iter()
        .enumerate()
        .map(|(n, (route, priority, due))| Claim {
            token: Token {
                id: i64::try_from(n).unwrap(),
                epoch: 0,
                fence: 1,
            },
            route: *route,
            priority: *priority,
            visible_after: at(*due),
            attempt: 0,
        });
    Claimed {
        claims: claims.collect(),
        at: (!rows.is_empty()).then(|| at(now)),
        ..Claimed::default()
    }
}

#[test]
fn a_lane_is_asked_for_once_and_a_batch_bounds_all() {
    let (mut lanes, now, x) = (Lanes::default(), Instant::now(), route(1, "x"));
    lanes.note_route(1, false, now);
    let request = lanes.plan(
        &[group(&["x"], 4), group(&["x", "y"], 9)],
        |_| Some((&x, Nodes::Any)),
        10,
        now,
    );
    assert_eq!(request.shares, [9], "the group with the most free slots");
    let limits: Vec<i32> = request.lanes.iter().map(|lane| lane.limit).collect();
    assert_eq!(limits, [9, 9, 1, 1], "what is locked in vain is bounded");
}

#[test]
fn a_large_group_without_due_work_leaves_the_batch_to_others() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let (x, y) = (route(1, "x"), route(2, "y"));
    let demand = [group(&["x"], 600), group(&["y"], 3)];
    let target = |id| Some((if id == 1 { &x } else { &y }, Nodes::Any));
    lanes.note_route(2, false, now);
    assert_eq!(lanes.plan(&demand, target, 500, now).shares, [3]);
    lanes.note_route(1, false, now);
    assert_eq!(
        lanes.plan(&demand, target, 500, now).shares,
        [497, 3],
        "nor does one with much work take all of it"
    );
}

#[test]
fn nothing_is_asked_for_where_nobody_serves_the_route() {
    let (mut lanes, now, z) = (Lanes::default(), Instant::now(), route(1, "z"));
    lanes.note_route(1, false, now);
    assert!(
        lanes
            .plan(&[group(&["x"], 4)], |_| Some((&z, Nodes::Any)), 10, now)
            .lanes
            .is_empty()
    );
    assert!(
        lanes
            .plan(&[], |_| Some((&z, Nodes::Any)), 10, now)
            .lanes
            .is_empty()
    );
}

#[test]
fn a_lane_that_gave_less_than_asked_rests_until_news() {
    let (mut lanes, now, x) = (Lanes::default(), Instant::now(), route(1, "x"));
    lanes.note_due(&due(&[lane(1, 0)]), now);
    let request = lanes.plan(&[group(&["x"], 2)], |_| Some((&x, Nodes::Any)), 10, now);
    lanes.learn(&request, &claimed(9_000, &[(1, 1, 0), (1, 1, 1)]), now);
    let request = lanes.plan(&[group(&["x"], 2)], |_| Some((&x, Nodes::Any)), 10, now);
    assert_eq!(
        request.lanes.len(),
        1,
        "all that was asked for came, so there may be more"
    );
    lanes.learn(&request, &claimed(9_000, &[(1, 1, 2)]), now);
    assert!(
        lanes
            .plan(&[group(&["x"], 2)], |_| Some((&x, Nodes::Any)), 10, now)
            .lanes
            .is_empty()
    );
    lanes.note_route(1, false, now);
    assert_eq!(
        lanes
            .plan(&[group(&["x"], 2)], |_| Some((&x, Nodes::Any)), 10, now)
            .lanes
            .len(),
        4
    );
}

#[test]
fn the_mark_stays_behind_late_commits_and_comes_back() {
    let (mut lanes, now, x) = (Lanes::default(), Instant::now(), route(1, "x"));
    let ask = |lanes: &mut Lanes, now| {
        lanes.plan(&[group(&["x"], 1)], |_| Some((&x, Nodes::Any)), 1, now)
    };
    let page = due(&[lane(1, 0)]);
    lanes.note_due(&page, now);
    let request = ask(&mut lanes, now);
    assert_eq!(request.lanes[0].low, START);

    lanes.learn(&request, &claimed(10_000, &[(1, 1, 100)]), now);
    let request = ask(&mut lanes, now);
    assert_eq!(
        request.lanes[0].low.0,
        at(100),
        "an old row: claims go on behind it"
    );

    lanes.learn(&request, &claimed(10_000, &[(1, 1, 9_999)]), now);
    let request = ask(&mut lanes, now);
    assert_eq!(
        request.lanes[0].low.0,
        at(8_000),
        "a fresh row: two seconds stay open"
    );

    lanes.learn(&request, &claimed(0, &[]), now);
    let request = ask(&mut lanes, now);
    assert_eq!(
        request.lanes[0].low, START,
        "empty with a free slot: one look from the start"
    );
    lanes.learn(&request, &claimed(0, &[]), now);
    assert!(ask(&mut lanes, now).lanes.is_empty());

    lanes.note_due(&page, now);
    let request = ask(&mut lanes, now);
    lanes.learn(&request, &claimed(10_000, &[(1, 1, 100)]), now);
    let later = now + RESET_INTERVAL * 2;
    assert_eq!(
        ask(&mut lanes, later).lanes[0].low,
        START,
        "the timer takes it back"
    );
}

#[test]
fn returned_rows_lower_the_mark() {
    let (mut lanes, now, x) = (Lanes::default(), Instant::now(), route(1, "x"));
    lanes.note_due(&due(&[lane(1, 0)]), now);
    let request = lanes.plan(&[group(&["x"], 1)], |_| Some((&x, Nodes::Any)), 1, now);
    lanes.learn(&request, &claimed(10_000, &[(1, 1, 100)]), now);
    lanes.note_route(1, true, now);
    let request = lanes.plan(&[group(&["x"], 1)], |_| Some((&x, Nodes::Any)), 1, now);
    assert!(request.lanes.iter().all(|lane| lane.low == START));
}

#[test]
fn the_next_due_time_is_that_of_the_first_row_not_due_yet() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    assert_eq!(
        lanes.note_due(&due(&[lane(0, 0), lane(1, 70), lane(2, 50)]), now),
        Some(Duration::from_millis(50))
    );
    assert_eq!(lanes.routes().len(), 1);
    assert_eq!(lanes.note_due(&DuePage::default(), now), None);
}

#[test]
fn a_route_whose_claims_find_no_place_rests_longer_each_time() {
    let (mut lanes, now, x) = (Lanes::default(), Instant::now(), route(1, "x"));
    let unplaced = BTreeSet::from([1]);
    lanes.note_route(1, false, now);
    lanes.rest(&unplaced, now);
    assert_eq!(lanes.next_rested(now), Some(now + REST));
    let ask = |lanes: &mut Lanes, now| {
        lanes
            .plan(&[group(&["x"], 1)], |_| Some((&x, Nodes::Any)), 1, now)
            .lanes
            .len()
    };
    assert_eq!(ask(&mut lanes, now), 0);
    assert_eq!(ask(&mut lanes, now + REST), 4);
    lanes.rest(&unplaced, now);
    assert_eq!(lanes.next_rested(now), Some(now + REST * 2));
    for _ in 0..99 {
        lanes.rest(&unplaced, now);
    }
    assert_eq!(lanes.next_rested(now), Some(now + REST_MAX));
    lanes.rest(&BTreeSet::new(), now + REST_MAX * 3);
    assert_eq!(lanes.next_rested(now), None, "placed since: forgotten");
}

#[test]
fn a_paused_route_is_no_reason_to_look_until_a_scan_finds_it_open() {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    let one = |route, due_in, paused| DueLane {
        route,
        paused,
        ..lane(1, due_in)
    };
    assert!(
        lanes.note_route(1, false, now),
        "nobody knows of a pause yet"
    );
    let seen = [one(1, 0, true), one(2, 0, false), one(3, 9, true)];
    let next = lanes.note_due(&due(&seen), now);
    assert_eq!(next, None, "what is paused is not waited for");
    assert_eq!(lanes.routes(), BTreeSet::from([2]));
    assert!(!lanes.note_route(1, true, now));
    assert_eq!(lanes.routes(), BTreeSet::from([2]));
    lanes.note_due(&due(&[one(1, 0, false)]), now);
    assert_eq!(lanes.routes(), BTreeSet::from([1, 2]));
    assert!(lanes.note_route(1, false, now));
    // What operators changed may be about a route without rows, which no scan sees.
    assert!(!lanes.note_route(3, false, now));
    lanes.forget_pauses();
    assert!(lanes.note_route(3, false, now));
}
