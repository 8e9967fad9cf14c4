use super::*;

const DEAD_AFTER: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(2);

fn sight(reason: Reason, head: TaskId) -> Sight {
    Sight {
        route: 1,
        reason,
        heads: Heads::from([(1, head)]),
    }
}

/// Looks every three seconds, from 0 on, and answers at which seconds the route was judged.
fn judged(looks: &[Option<(Reason, TaskId, u64)>]) -> Vec<usize> {
    let (mut watch, start) = (Watch::new(DEAD_AFTER, GRACE), Instant::now());
    let mut seconds = Vec::new();
    for (turn, look) in looks.iter().enumerate() {
        let now = start + Duration::from_secs(3) * u32::try_from(turn).unwrap();
        let sights: Vec<Sight> = look
            .iter()
            .map(|(reason, head, _)| sight(*reason, *head))
            .collect();
        let failed = look.map_or(0, |(_, _, failed)| failed);
        if !watch.look(&sights, failed, now).1.is_empty() {
            seconds.push(turn * 3);
        }
    }
    seconds
}

#[test]
fn a_route_is_judged_after_death_time_and_grace() {
    let gone = Some((Reason::NoLiveWorkers, 1, 0));
    assert_eq!(judged(&[gone; 7]), [15, 18]);
}

#[test]
fn a_reason_that_changes_is_no_new_start() {
    let mut looks = [Some((Reason::NoLiveWorkers, 1, 0)); 6];
    looks[4] = Some((Reason::WorkersUnreachable, 1, 0));
    assert_eq!(judged(&looks), [15]);
}

#[test]
fn a_look_that_finds_it_served_starts_anew() {
    let mut looks = [Some((Reason::NoLiveWorkers, 1, 0)); 9];
    looks[2] = None;
    assert_eq!(judged(&looks), [24]);
}

#[test]
fn a_failed_beat_starts_anew() {
    let mut looks = [Some((Reason::NoLiveWorkers, 1, 0)); 9];
    for look in &mut looks[3..] {
        *look = Some((Reason::NoLiveWorkers, 1, 1));
    }
    assert_eq!(judged(&looks), [24]);
}

#[test]
fn a_freeze_starts_anew() {
    let (mut watch, start) = (Watch::new(DEAD_AFTER, GRACE), Instant::now());
    let sights = [sight(Reason::NoLiveWorkers, 1)];
    watch.look(&sights, 0, start);
    let later = start + Duration::from_secs(60);
    assert_eq!(watch.look(&sights, 0, later).1, []);
}

#[test]
fn a_full_pool_is_judged_only_when_its_line_stands_still() {
    let stands = [Some((Reason::WorkersAtCapacity, 1, 0)); 6];
    assert_eq!(judged(&stands), [15]);
    let moves: Vec<_> = (0..20)
        .map(|head| Some((Reason::WorkersAtCapacity, head, 0)))
        .collect();
    assert_eq!(judged(&moves), Vec::<usize>::new());
    // Whoever is not there moves nothing: the line changes by what the chore itself puts back.
    let put_back: Vec<_> = (0..6)
        .map(|head| Some((Reason::NoLiveWorkers, head, 0)))
        .collect();
    assert_eq!(judged(&put_back), [15]);
}

#[test]
fn what_a_full_pool_moves_leaves_the_list_and_what_is_only_new_does_not() {
    let (mut watch, start) = (Watch::new(DEAD_AFTER, GRACE), Instant::now());
    let first = watch.look(&[sight(Reason::WorkersAtCapacity, 1)], 0, start);
    assert_eq!(first.0, [1], "another replica may have judged it");
    let later = start + Duration::from_secs(3);
    let moved = watch.look(&[sight(Reason::WorkersAtCapacity, 2)], 0, later);
    assert_eq!(moved.0, Vec::<RouteId>::new());
}

#[test]
fn workers_that_came_and_are_full_already_are_no_reason_to_judge() {
    let mut looks = [Some((Reason::NoLiveWorkers, 1, 0)); 12];
    for look in &mut looks[4..] {
        *look = Some((Reason::WorkersAtCapacity, 1, 0));
    }
    assert_eq!(
        judged(&looks),
        [27, 30, 33],
        "the line must stand still for as long again"
    );
}
