use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::domain::pause::Address;
use crate::domain::placement::Placement;
use crate::domain::quota::{Limited, Usage};
use crate::domain::rate::{Bucket, Rate};
use crate::domain::scope::{FrameLimits, Namespaces, Scope};

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// A group of the route's namespace and queue with (workers, unreachable, slots, free).
fn group(types: &[&str], node: &str, numbers: (u32, u32, u32, u32)) -> Group {
    Group {
        scope: Scope {
            namespaces: Namespaces::Only(set(&["default"])),
            task_queue: "q".into(),
            task_types: set(types),
            node: node.into(),
        },
        workers: numbers.0,
        unreachable: numbers.1,
        slots: numbers.2,
        free: numbers.3,
        frames: FrameLimits::default(),
    }
}

fn route(placement: Placement, pin: &str) -> Route {
    Route {
        namespace: "default".into(),
        task_queue: "q".into(),
        task_type: "t".into(),
        node: pin.into(),
        placement,
        ..Route::default()
    }
}

/// A pause of this route's queue.
fn pause(route: &Route, by: &str, reason: &str) -> Pause {
    Pause {
        address: Address {
            task_queue: Some(route.task_queue.clone()),
            ..Address::default()
        },
        reason: reason.into(),
        by: by.into(),
        since: at(3),
        cancel_running: false,
    }
}

const FREE: (u32, u32, u32, u32) = (1, 0, 2, 1);
const FULL: (u32, u32, u32, u32) = (1, 0, 2, 0);
const LOST: (u32, u32, u32, u32) = (2, 2, 0, 0);
const NONE: (u32, u32, u32, u32) = (1, 0, 0, 0);

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
}

#[test]
fn the_table_of_reasons() {
    let anywhere = || Placement::Anywhere;
    let prefer = || Placement::Prefer(set(&["a"]));
    let require = || Placement::Require(set(&["a"]));
    let rows: Vec<(Route, Vec<Group>, Result<(), Reason>)> = vec![
        (route(anywhere(), ""), vec![], Err(Reason::NoLiveWorkers)),
        (route(anywhere(), ""), vec![group(&["t"], "", FREE)], Ok(())),
        (
            route(anywhere(), ""),
            vec![group(&["t"], "", LOST)],
            Err(Reason::WorkersUnreachable),
        ),
        // One who answers says more than one who does not.
        (
            route(anywhere(), ""),
            vec![group(&["t"], "", LOST), group(&["t", "u"], "", FULL)],
            Err(Reason::WorkersAtCapacity),
        ),
        (
            route(anywhere(), ""),
            vec![group(&["t"], "", NONE)],
            Err(Reason::CapacityUnannounced),
        ),
        (
            route(anywhere(), ""),
            vec![group(&["u"], "", FREE)],
            Err(Reason::OtherType),
        ),
        (
            route(anywhere(), "z"),
            vec![group(&["t"], "a", FREE), group(&["u"], "z", FREE)],
            Err(Reason::OtherNode),
        ),
        // A group that nobody is in, such as one whose workers all drain.
        (
            route(anywhere(), ""),
            vec![group(&["t"], "", (0, 0, 0, 0))],
            Err(Reason::NoLiveWorkers),
        ),
        (
            route(prefer(), ""),
            vec![group(&["t"], "b", FREE), group(&["t"], "a", FULL)],
            Err(Reason::WorkersAtCapacity),
        ),
        (
            route(prefer(), ""),
            vec![group(&["t"], "b", FREE), group(&["t"], "a", LOST)],
            Ok(()),
        ),
        (
            route(prefer(), ""),
            vec![group(&["t"], "b", FREE), group(&["u"], "a", FREE)],
            Ok(()),
        ),
        (
            route(require(), ""),
            vec![group(&["t"], "b", FREE)],
            Err(Reason::OtherNode),
        ),
        (
            route(require(), ""),
            vec![group(&["t"], "b", FREE), group(&["t"], "a", LOST)],
            Err(Reason::WorkersUnreachable),
        ),
        (
            route(require(), "b"),
            vec![group(&["t"], "b", FREE)],
            Err(Reason::PinConflict),
        ),
    ];
    for (route, groups, expected) in rows {
        assert_eq!(census(&route, &groups), expected, "{route:?} {groups:?}");
    }
}

#[test]
fn workers_of_other_tenants_and_queues_count_for_nothing() {
    let mut stranger = group(&["t"], "", FREE);
    stranger.scope.namespaces = Namespaces::Only(set(&["other"]));
    let mut elsewhere = group(&["t"], "", FREE);
    elsewhere.scope.task_queue = "other".into();
    let answer = census(&route(Placement::Anywhere, ""), &[stranger, elsewhere]);
    assert_eq!(answer, Err(Reason::NoLiveWorkers));
}

#[test]
fn declarations_explain_only_what_nobody_serves() {
    let undeclared = Route {
        undeclared: true,
        ..route(Placement::Anywhere, "")
    };
    assert_eq!(census(&undeclared, &[]), Err(Reason::QueueNotDeclared));
    let other = [group(&["u"], "", FREE)];
    assert_eq!(census(&undeclared, &other), Err(Reason::QueueNotDeclared));
    let full = [group(&["t"], "", FULL)];
    assert_eq!(census(&undeclared, &full), Err(Reason::WorkersAtCapacity));
    assert_eq!(census(&undeclared, &[group(&["t"], "", FREE)]), Ok(()));
}

/// Forty are claimed.
fn usage(quota: i32) -> Usage {
    Usage {
        of: Limited::Route(1),
        quota: Some(quota),
        claimed: 40,
        oldest: None,
        bucket: None,
        at: at(0),
    }
}

/// The next token comes in three seconds.
fn empty(of: Limited) -> Usage {
    let full = Bucket {
        rate: Rate::new(20, 60_000, Some(5)),
        full_at: None,
    };
    Usage {
        of,
        bucket: Some(full.take(5, at(0))),
        ..usage(50)
    }
}

#[test]
fn the_order_of_the_gates() {
    let route = route(Placement::Anywhere, "");
    let pauses = [
        pause(&route, "olga", ""),
        Pause {
            address: Address::default(),
            ..pause(&route, "", "flood")
        },
        Pause {
            address: Address {
                task_type: Some("other".into()),
                ..Address::default()
            },
            ..pause(&route, "", "")
        },
    ];
    let (spare, used, throttled) = (usage(50), usage(40), empty(Limited::Namespace(1)));
    assert_eq!(
        Verdict::QuotaUsed(used).sentence(),
        "the quota of its route: 40 of 40 used"
    );
    let facts = Facts {
        route: &route,
        pauses: &pauses,
        stage: Stage::Ready {
            due_at: Some(at(9)),
            hold: held(3),
        },
        groups: &[],
        quotas: &[spare, throttled, used],
    };
    let all = stops(&facts);
    let names: Vec<&str> = all.iter().map(Verdict::name).collect();
    assert_eq!(
        names,
        [
            "not_due",
            "held",
            "paused",
            "quota_used_up",
            "throttled",
            "no_live_workers"
        ]
    );
    assert_eq!(
        all[2].sentence(),
        "it does not start: queue q, paused by olga since 2027-01-15T08:00:03.000Z; everything, paused since 2027-01-15T08:00:03.000Z (flood)"
    );
    assert_eq!(
        all[4].sentence(),
        "the rate of its namespace, 20/min: the next task may start at 2027-01-15T08:00:03.000Z"
    );
    assert_eq!(judge(&facts), Verdict::NotDue(at(9)));
    let told: Vec<Option<bool>> = gates(&all)
        .into_iter()
        .map(|(_, says)| says.map(|says| says.is_ok()))
        .collect();
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(
        told,
        [yes, yes, no, no, no, no, no, yes, no, None, None, None],
        "nobody can be looked at behind the workers' gate"
    );
    let (rate, mut paced) = (Rate::new(5, 1000, None), facts.clone());
    if let Stage::Ready { hold, .. } = &mut paced.stage {
        hold.key_rate = Some((rate, at(5)));
    }
    assert!(stops(&paced).contains(&Verdict::KeyThrottled(rate, at(5))));
}

#[test]
fn what_is_claimed_or_has_ended_stands_at_one_gate() {
    let route = route(Placement::Anywhere, "");
    let facts = |stage| Facts {
        pauses: &[],
        route: &route,
        stage,
        groups: &[],
        quotas: &[],
    };
    let claimed = Claimed {
        dispatcher: 7,
        replica: "r".into(),
        worker: Some("w".into()),
        since: at(1),
        cancel_requested: true,
    };
    let all = stops(&facts(Stage::Claimed(claimed.clone())));
    assert_eq!(all, [Verdict::Claimed(claimed)]);
    assert_eq!(
        all[0].sentence(),
        "replica r (dispatcher 7) has it since 2027-01-15T08:00:01.000Z, on worker w; it has been asked to stop"
    );
    assert_eq!(
        gates(&all)
            .iter()
            .filter(|(_, says)| *says != Some(Ok(())))
            .count(),
        1
    );

    let all = stops(&facts(Stage::Ended {
        state: "cancelled".into(),
        at: at(2),
        class: Some("cancel_ignored".into()),
    }));
    assert_eq!(
        all[0].sentence(),
        "it has ended as cancelled (cancel_ignored) at 2027-01-15T08:00:02.000Z"
    );
    assert_eq!(
        gates(&all)
            .iter()
            .filter(|(_, says)| says.is_none())
            .count(),
        10
    );
}

fn held(bits: i16) -> Hold {
    Hold {
        bits,
        ..Hold::default()
    }
}

fn any_group() -> impl Strategy<Value = Group> {
    let names = prop::sample::subsequence(vec!["t", "u"], 0..=2);
    let node = prop::sample::select(vec!["", "a", "b", "c"]);
    (names, node, 0..3u32, 0..3u32, 0..3u32, 0..3u32).prop_map(
        |(types, node, workers, unreachable, slots, free)| {
            let unreachable = unreachable.min(workers);
            let slots = if unreachable == workers { 0 } else { slots };
            group(&types, node, (workers, unreachable, slots, free.min(slots)))
        },
    )
}

fn any_route() -> impl Strategy<Value = Route> {
    let placement = prop_oneof![
        Just(Placement::Anywhere),
        Just(Placement::Prefer(set(&["a", "b"]))),
        Just(Placement::Require(set(&["a", "b"]))),
    ];
    let pin = prop::sample::select(vec!["", "a", "c"]);
    (placement, pin, any::<bool>()).prop_map(|(placement, pin, undeclared)| Route {
        undeclared,
        ..route(placement, pin)
    })
}

proptest! {
    #[test]
    fn the_first_gate_that_stops_is_the_verdict(
        route in any_route(),
        groups in prop::collection::vec(any_group(), 0..5),
        due in prop::option::of(0i64..9),
        hold in 0i16..8,
        paused in any::<bool>(),
    ) {
        let stage = Stage::Ready { due_at: due.map(at), hold: held(hold) };
        let pauses: Vec<Pause> = paused.then(|| pause(&route, "", "")).into_iter().collect();
        let facts = Facts { route: &route, stage, pauses: &pauses, groups: &groups, quotas: &[] };
        let (all, verdict) = (stops(&facts), judge(&facts));
        let closed: Vec<Gate> = gates(&all)
            .into_iter()
            .filter(|(_, says)| matches!(says, Some(Err(_))))
            .map(|(gate, _)| gate)
            .collect();
        // Each stop closes a gate of its own, and the verdict's is the first of them.
        prop_assert_eq!(closed.len(), all.len());
        prop_assert!(closed.is_sorted());
        prop_assert_eq!(closed.first().copied(), verdict.gate());
        prop_assert_eq!(all.is_empty(), verdict == Verdict::WillBeClaimed);
    }

    /// Whatever is there, one more worker that is live, free and where the task may run is all that a due task lacks,
    /// unless no worker at all may run it.
    #[test]
    fn a_worker_that_fits_opens_every_gate_of_the_workers(
        route in any_route(),
        mut groups in prop::collection::vec(any_group(), 0..5),
    ) {
        let node = if route.node.is_empty() { "a" } else { &route.node };
        groups.push(group(&["t"], node, FREE));
        let expected = match &route.placement {
            Placement::Require(nodes) if !nodes.contains(node) => Err(Reason::PinConflict),
            _ => Ok(()),
        };
        prop_assert_eq!(census(&route, &groups), expected);
    }

    /// The census says yes exactly when some group with a free slot serves the route as dispatch asks it.
    #[test]
    fn the_census_agrees_with_dispatch(
        route in any_route(),
        groups in prop::collection::vec(any_group(), 0..5),
    ) {
        let nodes = scope::nodes(&route, || groups.clone());
        let taken = groups
            .iter()
            .any(|group| group.is_live() && group.free > 0 && group.scope.serves(&route, nodes));
        prop_assert_eq!(census(&route, &groups).is_ok(), taken);
    }
}
