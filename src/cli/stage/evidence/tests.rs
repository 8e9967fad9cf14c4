use super::*;

/// A run of task 1; times are those of the fences.
fn run(epoch: i64, fence: i64, outcome: Option<Outcome>, answer: Option<Answer>) -> Run {
    Run {
        task_id: 1,
        epoch,
        fence,
        start_us: fence * 10,
        end_us: outcome.map(|_| fence * 10 + 5),
        outcome,
        answer,
        attempt: 1,
        task_type: "t".into(),
    }
}

fn state(stand: Stand) -> State {
    State {
        id: 1,
        stand,
        attempt: 0,
    }
}

fn of(stands: &[Stand], runs: Vec<Run>, kills: &[i64]) -> Evidence {
    let states: Vec<State> = stands.iter().copied().map(state).collect();
    judge([1].into_iter(), &states, runs, kills)
}

const WELL: Option<Outcome> = Some(Outcome::Succeeded);
const BADLY: Option<Outcome> = Some(Outcome::Retryable);
const RECORDED: Option<Answer> = Some(Answer::Recorded);
const LATE: Option<Answer> = Some(Answer::Superseded);

#[test]
fn retries_are_neither_reruns_nor_duplicates() {
    // Out of order, as the ledgers of two workers are.
    let runs = vec![run(1, 2, WELL, RECORDED), run(0, 1, BADLY, RECORDED)];
    let expected = Evidence {
        starts: 2,
        ..Evidence::default()
    };
    assert_eq!(of(&[Stand::Done], runs, &[]), expected);
}

#[test]
fn a_run_that_was_cut_off_is_rerun() {
    let runs = vec![run(0, 1, None, None), run(1, 2, WELL, RECORDED)];
    let evidence = of(&[Stand::Done], runs, &[]);
    assert_eq!(
        (evidence.reruns, evidence.duplicates, evidence.lost),
        (1, 0, 0)
    );
}

#[test]
fn two_successes_of_an_epoch_need_a_kill_between_their_starts() {
    let runs = || vec![run(0, 1, WELL, LATE), run(0, 2, WELL, RECORDED)];
    for (kills, duplicates) in [(vec![], 1), (vec![9], 1), (vec![15], 0), (vec![20], 1)] {
        let evidence = of(&[Stand::Done], runs(), &kills);
        assert_eq!(evidence.duplicates, duplicates, "{kills:?}");
        assert_eq!((evidence.reruns, evidence.superseded), (1, 1));
    }
}

#[test]
fn what_counts_twice_is_a_duplicate_even_after_a_kill() {
    let same_epoch = vec![run(0, 1, WELL, RECORDED), run(0, 2, WELL, RECORDED)];
    assert_eq!(of(&[Stand::Done], same_epoch, &[15]).duplicates, 1);
    let after_success = vec![run(0, 1, WELL, RECORDED), run(1, 2, BADLY, RECORDED)];
    assert_eq!(of(&[Stand::Done], after_success, &[15]).duplicates, 1);
    let done = vec![run(0, 1, WELL, RECORDED)];
    assert_eq!(of(&[Stand::Running, Stand::Done], done, &[]).duplicates, 1);
}

#[test]
fn what_is_gone_or_unproven_is_lost() {
    assert_eq!(of(&[], vec![], &[]).lost, 1);
    assert_eq!(of(&[Stand::Waiting], vec![], &[]).lost, 0);
    assert_eq!(of(&[Stand::Done], vec![], &[]).lost, 1);
    assert_eq!(
        of(&[Stand::Done], vec![run(0, 1, BADLY, RECORDED)], &[]).lost,
        1
    );
    assert_eq!(
        of(&[Stand::Failed], vec![run(0, 1, BADLY, RECORDED)], &[]).lost,
        0
    );
    assert_eq!(
        of(&[Stand::Waiting], vec![run(0, 1, WELL, RECORDED)], &[]).lost,
        1
    );
    assert_eq!(
        of(&[Stand::Waiting], vec![run(0, 1, WELL, None)], &[]).lost,
        0
    );
}
