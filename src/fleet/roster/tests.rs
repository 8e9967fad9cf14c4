use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::domain::scope::Namespaces;
use crate::domain::scope::Transport;
use crate::fleet::member::REFUSAL_WAIT;

fn scope(types: &[&str], node: &str) -> Scope {
    Scope {
        namespaces: Namespaces::All,
        task_queue: "q".into(),
        task_types: types
            .iter()
            .map(ToString::to_string)
            .collect::<BTreeSet<_>>(),
        node: node.into(),
    }
}

fn route(task_type: &str, node: &str) -> Route {
    Route {
        id: 1,
        namespace: "default".into(),
        task_queue: "q".into(),
        task_type: task_type.into(),
        node: node.into(),
        ..Route::default()
    }
}

fn join(fleet: &Fleet, scope: Scope, slots: u32, max_frame_bytes: usize) -> SessionId {
    join_by(Transport::Grpc, fleet, scope, slots, max_frame_bytes)
}

fn join_by(
    transport: Transport,
    fleet: &Fleet,
    scope: Scope,
    slots: u32,
    max_frame_bytes: usize,
) -> SessionId {
    let (outbound, _) = mpsc::channel(1);
    let session = Session::new(fleet.next_session(), outbound, CancellationToken::new());
    let id = session.id;
    let profile = Profile {
        worker_id: id.to_string(),
        identity: String::new(),
        scope,
        slots,
        max_frame_bytes,
        build_id: String::new(),
        transport,
    };
    fleet.register(session, Arc::new(profile), None);
    fleet.prove(id);
    id
}

#[test]
fn the_most_free_worker_is_chosen_and_equals_take_turns() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    let small = join(&fleet, scope(&["a"], ""), 1, 1000);
    let (x, y) = (
        join(&fleet, scope(&["a"], ""), 3, 1000),
        join(&fleet, scope(&["a"], ""), 3, 1000),
    );
    let chosen: Vec<_> = (0..7)
        .map(|_| {
            fleet
                .place(&route("a", ""), Nodes::Any, |_| 1, now)
                .unwrap()
        })
        .collect();
    let count = |id| {
        chosen
            .iter()
            .filter(|placed| placed.session.id == id)
            .count()
    };
    assert_eq!((count(small), count(x), count(y)), (1, 3, 3));
    assert_ne!(chosen[0].session.id, chosen[1].session.id);
    assert_eq!(
        fleet
            .place(&route("a", ""), Nodes::Any, |_| 1, now)
            .unwrap_err(),
        Unplaced::NobodyFree
    );
    drop(chosen);
    assert_eq!(
        fleet
            .demand(now)
            .iter()
            .map(|group| group.free)
            .sum::<u32>(),
        7
    );
}

#[test]
fn a_frame_goes_to_a_worker_that_takes_it() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    join(&fleet, scope(&["a"], ""), 9, 100);
    assert_eq!(
        fleet
            .place(&route("a", ""), Nodes::Any, |_| 101, now)
            .unwrap_err(),
        Unplaced::TooLarge {
            bytes: 101,
            largest: 100
        }
    );
    let large = join(&fleet, scope(&["a"], ""), 1, 1000);
    let placed = fleet
        .place(&route("a", ""), Nodes::Any, |_| 101, now)
        .unwrap();
    assert_eq!(placed.session.id, large);
    assert_eq!(
        fleet
            .place(&route("a", ""), Nodes::Any, |_| 101, now)
            .unwrap_err(),
        Unplaced::TooLarge {
            bytes: 101,
            largest: 1000
        }
    );
}

#[test]
fn a_frame_is_as_large_as_it_is_behind_the_door_of_the_worker() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    let bytes = |transport| match transport {
        Transport::Grpc => 100,
        Transport::WebSocket => 134,
    };
    let place = || fleet.place(&route("a", ""), Nodes::Any, bytes, now);
    join_by(Transport::WebSocket, &fleet, scope(&["a"], ""), 9, 133);
    let too_large = Unplaced::TooLarge {
        bytes: 134,
        largest: 133,
    };
    assert_eq!(place().unwrap_err(), too_large);
    let grpc = join(&fleet, scope(&["a"], ""), 1, 100);
    let placed = place().unwrap();
    assert_eq!(placed.session.id, grpc);
    let wide = join_by(Transport::WebSocket, &fleet, scope(&["a"], ""), 1, 134);
    let placed = place().unwrap();
    assert_eq!(placed.session.id, wide);
}

#[test]
fn a_session_that_refuses_rests_and_one_that_frees_a_slot_is_asked_again() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    let id = join(&fleet, scope(&["a"], ""), 2, 1000);
    let running = fleet
        .place(&route("a", ""), Nodes::Any, |_| 1, now)
        .unwrap();
    fleet.rest(id, now);
    assert!(fleet.demand(now).is_empty());
    assert_eq!(fleet.next_rested(now), Some(now + REFUSAL_WAIT));
    assert_eq!(fleet.demand(now + REFUSAL_WAIT).len(), 1);
    drop(running);
    assert_eq!(fleet.demand(now)[0].free, 2);

    let mut refused = fleet
        .place(&route("a", ""), Nodes::Any, |_| 1, now)
        .unwrap()
        .slot;
    fleet.rest(id, now);
    refused.refuse();
    drop(refused);
    assert!(fleet.demand(now).is_empty(), "the slot that it has not");
    assert_eq!(fleet.next_rested(now), Some(now + REFUSAL_WAIT * 2));
    assert_eq!(fleet.demand(now + REFUSAL_WAIT * 2)[0].free, 2);
}

#[test]
fn the_end_of_a_rest_is_news_whoever_notices_it() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    let id = join(&fleet, scope(&["a"], ""), 1, 1000);
    let mut changes = fleet.changes();
    fleet.rest(id, now);
    assert!(fleet.demand(now).is_empty());
    changes.mark_unchanged();
    assert_eq!(fleet.groups(now)[0].free, 0);
    assert!(!changes.has_changed().unwrap());
    assert_eq!(fleet.groups(now + REFUSAL_WAIT)[0].free, 1);
    assert!(changes.has_changed().unwrap());
    assert_eq!(fleet.next_rested(now), None);
    changes.mark_unchanged();
    assert_eq!(fleet.demand(now + REFUSAL_WAIT)[0].free, 1);
    assert!(!changes.has_changed().unwrap(), "once");
}

#[test]
fn a_late_close_of_an_old_session_leaves_the_new_one() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    let old = join(&fleet, scope(&["a"], ""), 1, 1000);
    let placed = fleet
        .place(&route("a", ""), Nodes::Any, |_| 1, now)
        .unwrap();
    join(&fleet, scope(&["a"], ""), 1, 1000);
    fleet.deregister(old);
    drop(placed);
    assert_eq!(fleet.demand(now)[0].free, 1);
}

proptest! {
    /// Never more than the slots in flight, never a worker that does not serve the route, and no refusal while
    /// somebody who does has a free slot.
    #[test]
    fn placement_holds_over_random_fleets(
        workers in prop::collection::vec((0usize..3, 0usize..3, 1u32..4), 1..8),
        steps in prop::collection::vec((0usize..3, 0usize..3, any::<bool>()), 1..60),
    ) {
        const TYPES: [&str; 3] = ["a", "b", "c"];
        const NODES: [&str; 3] = ["", "n1", "n2"];
        let (fleet, now) = (Fleet::default(), Instant::now());
        let mut slots = HashMap::new();
        for (kind, node, count) in workers {
            slots.insert(join(&fleet, scope(&[TYPES[kind], "c"], NODES[node]), count, 1000), count);
        }
        let mut running: Vec<Placed> = Vec::new();
        for (kind, node, finish) in steps {
            if finish && !running.is_empty() {
                running.swap_remove(kind % running.len());
                continue;
            }
            let wanted = route(TYPES[kind], NODES[node]);
            let nodes = wanted.placement.nodes(&wanted.node, false);
            let free = fleet.demand(now).iter().any(|group| group.scope.serves(&wanted, nodes));
            match fleet.place(&wanted, nodes, |_| 1, now) {
                Ok(placed) => {
                    prop_assert!(placed.profile.scope.serves(&wanted, nodes));
                    running.push(placed);
                }
                Err(_) => prop_assert!(!free),
            }
            for (id, count) in &slots {
                let busy = running.iter().filter(|placed| placed.session.id == *id).count();
                prop_assert!(busy <= *count as usize);
            }
        }
    }
}

#[test]
fn an_idle_worker_that_is_ordered_to_go_waits_for_its_answers() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    join(&fleet, scope(&["a"], ""), 1, 1000);
    let placed = fleet
        .place(&route("a", ""), Nodes::Any, |_| 1, now)
        .unwrap();
    let drain = HashMap::from([(String::new(), Order::Drain)]);
    let going = || fleet.take_orders(&drain).len();
    let reply = placed.session.reply();
    assert_eq!(going(), 0, "it is busy");
    drop(placed);
    assert_eq!(going(), 0, "its result is not acknowledged");
    let again = reply.clone();
    drop(reply);
    assert_eq!(going(), 0);
    drop(again);
    assert_eq!(going(), 1);
}

#[test]
fn answers_of_a_worker_that_is_proven_are_no_news() {
    let fleet = Fleet::default();
    let id = join(&fleet, scope(&["a"], ""), 1, 1000);
    let version = fleet.version();
    assert!(!fleet.prove(id));
    assert!(fleet.take_orders(&HashMap::new()).is_empty());
    assert_eq!(fleet.version(), version);
    assert!(fleet.doubt(id));
    assert_ne!(fleet.version(), version);
}

#[test]
fn an_order_that_is_lifted_is_taken_back_from_those_under_it() {
    let (fleet, now) = (Fleet::default(), Instant::now());
    join(&fleet, scope(&["a"], ""), 1, 1000);
    let orders = HashMap::from([(String::new(), Order::Cordon)]);
    assert!(fleet.take_orders(&orders).is_empty());
    assert!(fleet.demand(now).is_empty());
    fleet.take_orders(&HashMap::new());
    assert_eq!(fleet.demand(now).len(), 1);
}

/// One change of a fleet, of the worker of this index.
#[derive(Clone, Copy, Debug)]
enum Change {
    Place,
    Finish,
    Rest,
    Drain,
    Doubt,
    Prove,
    Strike,
    Leave,
    Later,
}

fn changes() -> impl Strategy<Value = (Change, usize)> {
    let change = prop_oneof![
        4 => Just(Change::Place),
        3 => Just(Change::Finish),
        1 => Just(Change::Rest),
        1 => Just(Change::Drain),
        1 => Just(Change::Doubt),
        1 => Just(Change::Prove),
        1 => Just(Change::Strike),
        1 => Just(Change::Leave),
        1 => Just(Change::Later),
    ];
    (change, 0_usize..6)
}

proptest! {
    /// What is kept by group is what counting the members anew comes to, after any changes; and what is said of them differs
    /// only with the version.
    #[test]
    fn the_demand_is_what_the_members_say(steps in prop::collection::vec(changes(), 1..80)) {
        let (fleet, mut now) = (Fleet::default(), Instant::now());
        let types = ["a", "b"];
        let mut ids = Vec::new();
        for number in 0..6_usize {
            ids.push(join(&fleet, scope(&types[number % 2..], ""), 2, 1000));
        }
        let mut running = Vec::new();
        let said = |now| (fleet.groups(now), fleet.workers());
        for (change, number) in steps {
            let id = ids[number];
            let before = (said(now), fleet.version());
            match change {
                Change::Place => running.extend(fleet.place(&route("b", ""), Nodes::Any, |_| 1, now)),
                Change::Finish if number < running.len() => drop(running.swap_remove(number)),
                Change::Finish => {}
                Change::Rest => fleet.rest(id, now),
                Change::Drain => fleet.drain(id),
                Change::Doubt => drop(fleet.doubt(id)),
                Change::Prove => drop(fleet.prove(id)),
                Change::Strike => drop(fleet.strike_type(id, "a")),
                Change::Leave => fleet.deregister(id),
                Change::Later => now += Duration::from_millis(40),
            }
            let mut counted: BTreeMap<Scope, u32> = BTreeMap::new();
            let demand = fleet.demand(now);
            for member in fleet.shared.roster.lock().members().filter(|member| member.free() > 0) {
                *counted.entry((*member.scope).clone()).or_default() += member.free();
            }
            let told: BTreeMap<Scope, u32> = demand
                .iter()
                .map(|group| ((*group.scope).clone(), group.free))
                .collect();
            prop_assert_eq!(told.len(), demand.len(), "one group a scope");
            prop_assert_eq!(told, counted);
            let after = said(now);
            if fleet.version() == before.1 {
                prop_assert_eq!(after, before.0);
            }
        }
    }
}
