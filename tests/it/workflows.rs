//! Groups of tasks, through the store: staging, modes, pauses, cancels, re-runs, continuations.

use std::time::Duration;

use deadpool_postgres::GenericClient;
use fencepost::domain::id::{RunId, TaskId, Token, WorkflowId};
use fencepost::domain::settlement::Move;
use fencepost::store::settle::{self, Goes};
use fencepost::store::{Client, runs};

use crate::support::Queue;
use crate::support::queue::{CANCELLED, DONE, FAILED, backend, failure, success};

const GRACE: Duration = Duration::from_secs(30);

/// A workflow, its run and its members' tasks.
#[derive(Clone, Debug)]
struct Flow {
    id: WorkflowId,
    run: RunId,
    tasks: Vec<TaskId>,
}

/// Stages so many members on the queue's first route; `more` are further arguments, such as `mode => 'race'`.
async fn start(client: &impl GenericClient, members: i32, more: &str) -> Flow {
    let call = format!(
        "select workflow_id, run_id, task_ids
        from fencepost.start_workflow(array['q'], array['t'], array_fill('null'::bytea, array[$1::int]), {more})"
    );
    let row = client.query_one(&call, &[&members]).await.unwrap();
    Flow {
        id: row.get(0),
        run: row.get(1),
        tasks: row.get(2),
    }
}

/// Does what the run needs until it needs nothing; answers the steps that were taken.
async fn tend(client: &mut Client, run: RunId) -> Vec<runs::Step> {
    let mut taken = Vec::new();
    while let Some((_, step)) = runs::look(client, &[run]).await.unwrap().pop() {
        taken.push(step);
        let done = runs::take_step(client, run, step, GRACE).await.unwrap();
        if !done.moved {
            return taken;
        }
    }
    taken
}

async fn state(queue: &Queue, run: RunId) -> String {
    let query = format!("select state from fencepost.workflow where run_id = {run}");
    let row = queue.client().await.query_one(&query, &[]).await;
    row.unwrap().get(0)
}

async fn order(queue: &Queue, call: &str, flow: &Flow) -> RunId {
    queue
        .number(&format!("select fencepost.{call}_workflow({})", flow.id))
        .await
}

/// Kinds of a run's events in their order.
async fn events(queue: &Queue, run: RunId) -> Vec<String> {
    let query = "select kind from fencepost.workflow_event where run_id = $1 order by event_id";
    let rows = queue.client().await.query(query, &[&run]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// How each task of the list has ended, 0 for one that has not.
async fn ends(queue: &Queue, tasks: &[TaskId]) -> Vec<i16> {
    let mut ends = Vec::new();
    for id in tasks {
        ends.push(queue.outcome(*id).await.map_or(0, |outcome| outcome.state));
    }
    ends
}

/// Ends a claimed member.
async fn end(queue: &Queue, token: Token, how: i16) {
    match how {
        DONE => assert!(queue.complete(token).await),
        FAILED => {
            let moved = queue.give_back(failure(token, Move::DeadLetter)).await;
            assert_eq!(moved, [Goes::Dead]);
        }
        _ => {
            assert_eq!(queue.cancel(token.id).await.unwrap().state, "requested");
            assert!(queue.complete(token).await);
        }
    }
}

/// What the modes promise, said another way than the schema does: the state after these ends, of so many members.
fn promised(mode: &str, ends: &[i16], members: usize) -> Option<&'static str> {
    let all_in = ends.len() == members;
    match mode {
        "race" if ends.contains(&DONE) => Some("done"),
        "race" => all_in.then_some("failed"),
        "fail_fast" if ends.contains(&FAILED) => Some("failed"),
        _ if !all_in => None,
        _ if ends.iter().all(|end| *end == DONE) => Some("done"),
        _ => Some("failed"),
    }
}

#[tokio::test]
async fn each_mode_ends_as_it_promises_whatever_the_members_do() {
    const ENDS: [i16; 3] = [DONE, FAILED, CANCELLED];
    let queue = Queue::new().await;
    let mut client = queue.client().await;
    for mode in ["all", "race", "fail_fast"] {
        for number in 0..27 {
            let planned = [number % 3, number / 3 % 3, number / 9].map(|place| ENDS[place]);
            let flow = start(&client, 3, &format!("mode => '{mode}'")).await;
            let tokens = queue.claim(3).await;
            assert_eq!(tokens.len(), 3);
            for count in 1..=3 {
                let told = format!("{mode} {:?}", &planned[..count]);
                end(&queue, tokens[count - 1], planned[count - 1]).await;
                tend(&mut client, flow.run).await;
                let promised = promised(mode, &planned[..count], 3);
                assert_eq!(
                    state(&queue, flow.run).await,
                    promised.unwrap_or("running"),
                    "{told}"
                );
                let ended = events(&queue, flow.run).await;
                let ended = ended.iter().filter(|kind| *kind == "ended").count();
                assert_eq!(ended, usize::from(promised.is_some()), "{told}");
                if promised.is_some() {
                    break;
                }
            }
            // What was still running is told to stop; its report comes too late to count.
            for token in tokens {
                if let Some(row) = queue.live(token.id).await {
                    assert!(row.cancel_requested);
                    assert!(queue.complete(token).await);
                    assert_eq!(queue.outcome(token.id).await.unwrap().state, CANCELLED);
                }
            }
            tend(&mut client, flow.run).await;
            let open = format!(
                "select count(*) from fencepost.workflow where run_id = {} and not settled",
                flow.run
            );
            assert_eq!(queue.number(&open).await, 0, "{mode} {planned:?}");
        }
    }
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_workflow_without_members_ends_as_it_is_staged() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    for (mode, ends_as) in [("all", "done"), ("race", "failed"), ("fail_fast", "done")] {
        let flow = start(&client, 0, &format!("mode => '{mode}'")).await;
        assert_eq!(state(&queue, flow.run).await, ends_as);
        assert_eq!(events(&queue, flow.run).await, ["staged", "ended"]);
    }
}

/// SQLSTATE and field of a call that must be refused.
async fn refused(queue: &Queue, call: &str) -> (String, String) {
    let error = queue.client().await.query(call, &[]).await.unwrap_err();
    let error = error
        .as_db_error()
        .unwrap_or_else(|| panic!("{call}: {error}"));
    let field = error.column().unwrap_or_default().to_owned();
    (error.code().code().to_owned(), field)
}

#[tokio::test]
async fn what_cannot_be_staged_is_refused_with_its_field_and_leaves_nothing() {
    let queue = Queue::new().await;
    let existing = queue.enqueue_with("dispatch_key => 'taken'").await;
    let two = "array['q'], array['t'], array['1'::bytea, '2']";
    for (arguments, code, field) in [
        ("mode => 'some'".to_owned(), "FP030", "mode"),
        ("name => repeat('n', 201)".to_owned(), "FP001", "name"),
        ("namespace => ''".to_owned(), "FP001", "namespace"),
        ("workflow_key => ''".to_owned(), "FP001", "workflow_key"),
        ("continuation => '[]'".to_owned(), "FP033", "continuation"),
        (
            "continuation => '{\"payload\": 1}'".to_owned(),
            "FP033",
            "continuation.payload",
        ),
        (
            "continuation => '{\"priority\": 1.5}'".to_owned(),
            "FP033",
            "continuation.priority",
        ),
        (
            "continuation => '{\"task_queue\": \"q\"}'".to_owned(),
            "FP001",
            "continuation.task_type",
        ),
        (
            "continuation => '{\"task_queue\": \"q\", \"task_type\": \"t\", \"max_attempts\": 0}'"
                .to_owned(),
            "FP007",
            "continuation.max_attempts",
        ),
        (
            format!("{two}, priority => array[1, 4]"),
            "FP006",
            "priority",
        ),
        (
            format!("{two}, priority => array[1, 1, 1]"),
            "FP010",
            "priority",
        ),
        (
            "array['q'], array['t'], array['{'::bytea]".to_owned(),
            "FP003",
            "payload",
        ),
        (
            format!("{two}, dispatch_key => array[null, 'taken']"),
            "FP034",
            "dispatch_key",
        ),
    ] {
        let call = format!("select fencepost.start_workflow({arguments})");
        assert_eq!(
            refused(&queue, &call).await,
            (code.to_owned(), field.to_owned()),
            "{arguments}"
        );
    }
    for call in [
        "add_members(7, array['q'], array['t'], array['1'::bytea])",
        "pause_workflow(7)",
        "resume_workflow(7)",
        "cancel_workflow(7)",
        "rerun_workflow(7)",
    ] {
        let told = refused(&queue, &format!("select fencepost.{call}")).await;
        assert_eq!(
            told,
            ("FP032".to_owned(), "workflow_id".to_owned()),
            "{call}"
        );
    }
    assert_eq!(queue.number("select count(*) from fencepost.task").await, 1);
    assert_eq!(
        queue
            .number("select count(*) from fencepost.workflow")
            .await,
        0
    );
    assert_eq!(queue.row(existing).await.hold, 0);
}

#[tokio::test]
async fn a_key_names_one_workflow_also_for_two_that_come_at_once() {
    let queue = Queue::new().await;
    let (mut first, second) = (queue.client().await, queue.client().await);
    let waiter = backend(&second).await;
    let open = first.transaction().await.unwrap();
    let one = start(&open, 2, "workflow_key => 'k'").await;
    let other = start(&second, 2, "workflow_key => 'k'");
    let other = queue.waits(waiter, other, open.commit()).await;
    assert_eq!(
        (other.id, other.run, other.tasks),
        (one.id, one.run, one.tasks)
    );
    assert_eq!(queue.number("select count(*) from fencepost.task").await, 2);
}

#[tokio::test]
async fn members_are_added_until_the_end() {
    let queue = Queue::new().await;
    let (mut client, mut producer) = (queue.client().await, queue.client().await);
    let flow = start(&client, 1, "mode => 'all'").await;
    let add = format!(
        "select fencepost.add_members({}, array['q'], array['t'], array['1'::bytea], dispatch_key => array['once'])",
        flow.id
    );
    let only = queue.claim(1).await[0];
    // While a producer's transaction that adds is open, the last member ends: the run waits for the producer.
    let open = producer.transaction().await.unwrap();
    open.execute(&add, &[]).await.unwrap();
    assert!(queue.complete(only).await);
    assert_eq!(
        runs::look(&client, &[flow.run]).await.unwrap(),
        [(flow.run, runs::Step::Finish)]
    );
    assert!(runs::finish(&client, flow.run).await.unwrap().busy);
    open.commit().await.unwrap();
    assert_eq!(
        runs::finish(&client, flow.run).await.unwrap(),
        runs::Done::default()
    );
    // Its key makes a repeat harmless.
    client.execute(&add, &[]).await.unwrap();
    let members = "select count(*) from fencepost.workflow_member where ordinal in (1, 2)";
    assert_eq!(queue.number(members).await, 2);

    assert!(queue.complete(queue.claim(2).await[0]).await);
    assert_eq!(tend(&mut client, flow.run).await, [runs::Step::Finish]);
    assert_eq!(state(&queue, flow.run).await, "done");
    assert_eq!(refused(&queue, &add).await.0, "FP031");
    queue.assert_sound().await;
}

#[tokio::test]
async fn of_two_last_members_that_end_at_once_the_later_one_ends_the_run() {
    let queue = Queue::new().await;
    let (mut first, mut second) = (queue.client().await, queue.client().await);
    let flow = start(&first, 2, "mode => 'all'").await;
    let tokens = queue.claim(2).await;
    let open = first.transaction().await.unwrap();
    settle::complete(&open, &[success(tokens[0])])
        .await
        .unwrap();
    assert!(queue.complete(tokens[1]).await);
    assert_eq!(
        tend(&mut second, flow.run).await,
        [],
        "the first one is still to come"
    );
    open.commit().await.unwrap();
    // Both look now, as two replicas would.
    let (one, other) = tokio::join!(
        runs::finish(&first, flow.run),
        runs::finish(&second, flow.run)
    );
    let ended = [one.unwrap().ended, other.unwrap().ended];
    assert_eq!(ended.iter().flatten().count(), 1, "{ended:?}");
    assert_eq!(
        events(&queue, flow.run).await,
        ["staged", "member_done", "member_done", "ended"]
    );
}

#[tokio::test]
async fn a_pause_stops_claims_at_once_and_holds_a_retry_that_is_in_flight() {
    let queue = Queue::new().await;
    let (mut client, mut handler) = (queue.client().await, queue.client().await);
    let flow = start(&client, 1_200, "mode => 'all'").await;
    let tokens = queue.claim(3).await;
    let held = "select count(*) from fencepost.live where hold = 1";
    order(&queue, "pause", &flow).await;
    assert_eq!(queue.claim(10).await, [], "before any bit is set");
    assert_eq!(queue.number(held).await, 0);
    // One row is locked while the bits are set: the others don't wait for it.
    let open = handler.transaction().await.unwrap();
    settle::lock(&open, tokens[1].id).await.unwrap();
    tend(&mut client, flow.run).await;
    assert_eq!(queue.number(held).await, 1_199);
    open.commit().await.unwrap();
    assert_eq!(tend(&mut client, flow.run).await, [runs::Step::Hold]);
    assert_eq!(queue.number(held).await, 1_200);

    // The retry and the end of what was running go on, and nothing comes back to the line.
    queue.give_back(failure(tokens[0], Move::Retry)).await;
    let row = queue.row(tokens[0].id).await;
    assert_eq!((row.state, row.hold, row.attempt), (0, 1, 1));
    assert!(queue.complete(tokens[2]).await);
    queue
        .execute(&format!(
            "select fencepost.add_members({}, array['q'], array['t'], array['1'::bytea])",
            flow.id
        ))
        .await;
    assert_eq!(
        queue.number(held).await,
        1_200,
        "the new one is held as well"
    );
    assert_eq!(queue.claim(10).await, []);

    order(&queue, "resume", &flow).await;
    let (mut steps, mut routes) = (0, Vec::new());
    while let Some((run, step)) = runs::look(&client, &[flow.run]).await.unwrap().pop() {
        assert_eq!(step, runs::Step::Release);
        routes = runs::take_step(&mut client, run, step, GRACE)
            .await
            .unwrap()
            .routes;
        steps += 1;
    }
    assert_eq!(
        (steps, routes),
        (3, vec![1]),
        "in batches, and the claims are told"
    );
    assert_eq!(queue.number(held).await, 0);
    assert_eq!(queue.claim(10).await.len(), 10);
    let told = events(&queue, flow.run).await;
    assert_eq!(
        told,
        ["staged", "paused", "member_done", "staged", "resumed"]
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_cancelled_workflow_cancels_its_members_and_passes_over_locked_ones() {
    let queue = Queue::new().await;
    let (mut client, mut handler) = (queue.client().await, queue.client().await);
    let flow = start(&client, 700, "mode => 'all'").await;
    let tokens = queue.claim(2).await;
    let open = handler.transaction().await.unwrap();
    settle::lock(&open, flow.tasks[600]).await.unwrap();
    order(&queue, "cancel", &flow).await;
    assert_eq!(queue.claim(10).await, [], "before any member is cancelled");
    tend(&mut client, flow.run).await;
    let left = "select count(*) from fencepost.live";
    assert_eq!(
        queue.number(left).await,
        3,
        "two that run, one that is locked"
    );
    open.commit().await.unwrap();
    tend(&mut client, flow.run).await;
    assert_eq!(queue.number(left).await, 2);
    // A retry of what runs ends it, a success is none.
    let moved = queue.give_back(failure(tokens[0], Move::Retry)).await;
    assert_eq!(moved, [Goes::Cancelled]);
    assert!(queue.complete(tokens[1]).await);
    assert_eq!(ends(&queue, &flow.tasks[..2]).await, [CANCELLED, CANCELLED]);
    assert_eq!(tend(&mut client, flow.run).await, [runs::Step::Settle]);
    assert_eq!(tend(&mut client, flow.run).await, [], "it is settled");
    // Again is no error and no second end.
    order(&queue, "cancel", &flow).await;
    let told = events(&queue, flow.run).await;
    assert_eq!(told.iter().filter(|kind| *kind == "ended").count(), 1);
    assert_eq!(
        refused(
            &queue,
            &format!("select fencepost.pause_workflow({})", flow.id)
        )
        .await
        .0,
        "FP031"
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_handler_cannot_complete_a_member_of_a_workflow_that_is_over() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let flow = start(&client, 2, "mode => 'race'").await;
    let tokens = queue.claim(2).await;
    client
        .execute(
            &format!("select fencepost.complete('{}', '1')", tokens[0]),
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        runs::finish(&client, flow.run)
            .await
            .unwrap()
            .ended
            .as_deref(),
        Some("done")
    );
    let late = format!("select fencepost.complete('{}', '1')", tokens[1]);
    assert_eq!(refused(&queue, &late).await.0, "FP013");
    // The replica that hears of a completion which the handler has stored looks at the run.
    let missed = settle::Missed {
        token: tokens[0],
        success: true,
        worker: None,
        owner: None,
    };
    let judged = settle::look_again(&client, &[missed]).await.unwrap();
    assert_eq!(judged[0].run, Some(flow.run));
}

#[tokio::test]
async fn a_re_run_keeps_what_is_done_and_refuses_the_results_of_the_earlier_run() {
    let queue = Queue::new().await;
    let mut client = queue.client().await;
    let flow = start(&client, 4, "mode => 'all', priority => array[1, 1, 1, 3]").await;
    let tokens = queue.claim(3).await;
    assert!(queue.complete(tokens[0]).await);
    queue.give_back(failure(tokens[1], Move::DeadLetter)).await;
    // Member 3 runs, member 4 waits.
    let run = order(&queue, "rerun", &flow).await;
    assert_eq!(state(&queue, flow.run).await, "cancelled");
    assert_eq!(state(&queue, run).await, "running");
    // A late success of the earlier run counts for neither.
    assert!(queue.complete(tokens[2]).await);
    assert_eq!(
        ends(&queue, &flow.tasks[..3]).await,
        [DONE, FAILED, CANCELLED]
    );
    tend(&mut client, flow.run).await;
    assert_eq!(
        ends(&queue, &flow.tasks).await,
        [DONE, FAILED, CANCELLED, CANCELLED]
    );
    // A report that comes after the end is superseded.
    assert!(!queue.complete(tokens[2]).await);
    assert_eq!(
        queue
            .verdict(
                Token {
                    fence: 9,
                    ..tokens[2]
                },
                true
            )
            .await,
        settle::Verdict::Superseded
    );

    let members = "select array_agg(task_id order by ordinal) from fencepost.workflow_member where run_id = $1";
    let again: Vec<TaskId> = client.query_one(members, &[&run]).await.unwrap().get(0);
    assert_eq!(
        (again.len(), again[0]),
        (4, flow.tasks[0]),
        "the first one's result is kept"
    );
    let copies = queue.claim(3).await;
    assert_eq!(
        copies.iter().map(|token| token.id).collect::<Vec<_>>(),
        again[1..3]
    );
    let mut last = Queue::lane(3, 1);
    last.priority = 3;
    let last = queue.claim_lanes(&client, vec![last], vec![1]).await;
    assert_eq!(last[0].id, again[3], "at its own priority");
    for token in copies.into_iter().chain(last) {
        assert!(queue.complete(token).await);
    }
    tend(&mut client, run).await;
    assert_eq!(state(&queue, run).await, "done");
    assert_eq!(state(&queue, flow.run).await, "cancelled");
    let told = events(&queue, run).await;
    assert_eq!(
        told,
        [
            "rerun",
            "member_kept",
            "staged",
            "member_done",
            "member_done",
            "member_done",
            "ended"
        ]
    );
    // Everything once more.
    let all = format!("select fencepost.rerun_workflow({}, 'all')", flow.id);
    queue.number(&all).await;
    assert_eq!(queue.claim(9).await.len(), 3);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_redrive_joins_its_run_again_and_only_while_that_goes_on() {
    let queue = Queue::new().await;
    let mut client = queue.client().await;
    let flow = start(&client, 2, "mode => 'all'").await;
    let over = format!(
        "select fencepost.workflow_is_over({})::int::bigint",
        flow.run
    );
    assert_eq!(queue.number(&over).await, 0);
    assert_eq!(
        queue
            .number("select fencepost.workflow_is_over(null)::int::bigint")
            .await,
        0
    );
    assert_eq!(
        queue
            .number("select fencepost.workflow_is_over(7)::int::bigint")
            .await,
        1
    );
    let tokens = queue.claim(2).await;
    queue.give_back(failure(tokens[0], Move::DeadLetter)).await;
    order(&queue, "pause", &flow).await;
    let hold = format!(
        "select fencepost.rejoin_workflow({}, 1, {{}})::bigint",
        flow.run
    );
    let redrive = format!(
        "select task_id from fencepost.redrive_dead_letters(array[{}::bigint])",
        tokens[0].id
    );
    let copy = queue.number(&redrive).await;
    assert_eq!(queue.row(copy).await.hold, 1, "the workflow is paused");
    order(&queue, "resume", &flow).await;
    tend(&mut client, flow.run).await;
    assert!(queue.complete(tokens[1]).await);
    tend(&mut client, flow.run).await;
    assert_eq!(
        state(&queue, flow.run).await,
        "running",
        "the redriven member is unfinished"
    );
    let again = queue.again().await;
    assert!(queue.complete(again).await);
    tend(&mut client, flow.run).await;
    assert_eq!(
        state(&queue, flow.run).await,
        "done",
        "its first end no longer counts"
    );
    assert_eq!(queue.number(&over).await, 1);
    assert_eq!(refused(&queue, &hold.replace("{}", "9")).await.0, "FP031");
    queue.assert_sound().await;
}

/// The input of the task that a run's end enqueued.
async fn continued(queue: &Queue, run: RunId) -> serde_json::Value {
    let query = "select convert_from(task.payload, 'UTF8')
        from fencepost.workflow
        inner join fencepost.task on task.id = workflow.continued_as
        where workflow.run_id = $1";
    let row = queue
        .client()
        .await
        .query_one(query, &[&run])
        .await
        .unwrap();
    serde_json::from_str(row.get(0)).unwrap()
}

#[tokio::test]
async fn the_continuation_gets_what_the_members_came_to_as_far_as_it_fits() {
    const NEXT: &str =
        "continuation => '{\"task_queue\": \"next\", \"task_type\": \"sum\", \"priority\": 2}'";
    let queue = Queue::new().await;
    let mut client = queue.client().await;
    queue
        .number("select fencepost.declare_queue('q', 't')::bigint")
        .await;
    for limit in [1_048_576, 500, 300, 20] {
        queue
            .execute(&format!(
                "update fencepost.limits set payload_bytes = {limit}"
            ))
            .await;
        let flow = start(&client, 3, &format!("name => 'sums', {NEXT}")).await;
        let tokens = queue.claim(3).await;
        let batch = [
            settle::Completion {
                result: Some((
                    format!("{{\"sum\": {}}}", "1".repeat(150)).into(),
                    "application/json".into(),
                )),
                ..success(tokens[0])
            },
            settle::Completion {
                result: Some((b"\x00\xff".to_vec().into(), "image/png".into())),
                ..success(tokens[1])
            },
        ];
        settle::complete(&client, &batch).await.unwrap();
        queue.give_back(failure(tokens[2], Move::DeadLetter)).await;
        tend(&mut client, flow.run).await;
        assert_eq!(state(&queue, flow.run).await, "failed");
        let told = events(&queue, flow.run).await;
        if limit == 20 {
            // Nothing of it fits: that keeps no run from ending.
            assert!(
                told.contains(&"continuation_refused".to_owned()),
                "{told:?}"
            );
            continue;
        }
        assert!(told.contains(&"continued".to_owned()), "{told:?}");
        let input = continued(&queue, flow.run).await;
        assert_eq!(
            (&input["state"], &input["name"]),
            (&"failed".into(), &"sums".into())
        );
        assert_eq!(input["workflow_id"], flow.id.to_string());
        assert_eq!(input["results_left_out"], limit < 1_000, "{input}");
        let members = &input["members"];
        if limit == 300 {
            assert_eq!(input["members_left_out"], true);
            assert!(members.is_null());
            continue;
        }
        assert_eq!(members[2]["state"], "failed");
        assert_eq!(
            (&members[2]["error_class"], &members[2]["ordinal"]),
            (&"oops".into(), &3.into())
        );
        assert_eq!(members[0]["result"].is_null(), limit == 500);
        assert_eq!(members[1]["result_base64"].is_null(), limit == 500);
        if limit == 1_048_576 {
            assert_eq!(
                (&members[1]["result_base64"], &members[1]["result_type"]),
                (&"AP8=".into(), &"image/png".into())
            );
        }
    }
    // A workflow that is cancelled has no continuation.
    queue
        .execute("update fencepost.limits set payload_bytes = 1000")
        .await;
    let before = queue.number("select count(*) from fencepost.task").await;
    let flow = start(&client, 1, NEXT).await;
    order(&queue, "cancel", &flow).await;
    assert_eq!(
        queue.number("select count(*) from fencepost.task").await,
        before + 1
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_result_that_is_kept_no_longer_is_no_null_to_the_continuation() {
    const NEXT: &str = "continuation => '{\"task_queue\": \"next\", \"task_type\": \"sum\"}'";
    let queue = Queue::new().await;
    let mut client = queue.client().await;
    queue
        .number("select fencepost.declare_queue('q', 't')::bigint")
        .await;
    let flow = start(&client, 2, NEXT).await;
    let tokens = queue.claim(2).await;
    let done = |token, result: &'static str| settle::Completion {
        result: Some((result.into(), "application/json".into())),
        ..success(token)
    };
    settle::complete(&client, &[done(tokens[0], "7")])
        .await
        .unwrap();
    // As retention does while the run goes on.
    queue
        .execute("update fencepost.outcome set result = null")
        .await;
    settle::complete(&client, &[done(tokens[1], "null")])
        .await
        .unwrap();
    tend(&mut client, flow.run).await;
    let input = continued(&queue, flow.run).await;
    let members = input["members"].as_array().unwrap();
    let told = members.iter().map(|member| {
        (
            member.get("result").cloned(),
            member.get("result_expired").cloned(),
        )
    });
    let told: Vec<_> = told.collect();
    assert_eq!(
        told,
        [(None, Some(true.into())), (Some(().into()), None)],
        "{input}"
    );
}

#[tokio::test]
async fn the_continuation_of_a_huge_workflow_is_made_in_time() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    queue
        .number("select fencepost.declare_queue('q', 't')::bigint")
        .await;
    let next = "continuation => '{\"task_queue\": \"next\", \"task_type\": \"sum\"}'";
    let flow = start(&client, 1, next).await;
    // Its list would fit, but the statement of a longer one would be cut off, again and again.
    client
        .batch_execute(&format!(
            "update fencepost.limits set payload_bytes = 67108864;
            insert into fencepost.workflow_member (run_id, ordinal, task_id, priority)
            select {}, n, n, 1 from generate_series(2, 50001) as n",
            flow.run
        ))
        .await
        .unwrap();
    assert!(queue.complete(queue.claim(1).await[0]).await);
    assert!(
        runs::finish(&client, flow.run)
            .await
            .unwrap()
            .ended
            .is_some()
    );
    let input = continued(&queue, flow.run).await;
    assert_eq!(input["members_left_out"], true, "{input}");
    assert_eq!(input["state"], "failed");
}
