//! Dispatch keys that are remembered for a chosen time, and tasks that replace one that waits.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::GenericClient;
use fencepost::domain::id::TaskId;
use fencepost::domain::settlement::Move;
use fencepost::proto::producer::{EnqueueRequest, NewTask};
use fencepost::store::settle::Return;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::queue::{CANCELLED, failure};
use crate::support::{Producers, Queue};

const REPLACE: &str = r#"{"on_duplicate": "replace"}"#;

/// One enqueue with key `k`: the id and what came of it.
async fn enqueue(client: &impl GenericClient, options: &str, more: &str) -> (TaskId, String) {
    let call = format!(
        "select task_id, created, answer
        from fencepost.enqueue('q', 't', dispatch_key => 'k', options => '{options}'{more})"
    );
    let row = client.query_one(&call, &[]).await.unwrap();
    let answer: String = row.get(2);
    assert_eq!(row.get::<_, bool>(1), answer != "existing");
    (row.get(0), answer)
}

fn is(answer: &str, id: TaskId) -> (TaskId, String) {
    (id, answer.to_owned())
}

#[tokio::test]
async fn a_key_is_remembered_for_as_long_as_its_task_says() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let unfinished = r#"{"dedupe_for_ms": 0}"#;
    let (first, answer) = enqueue(&client, unfinished, "").await;
    assert_eq!(answer, "created");
    let token = queue.again().await;
    assert_eq!(enqueue(&client, "{}", "").await, is("existing", first));
    assert!(queue.complete(token).await);
    // The second one is remembered for an hour.
    let (second, answer) = enqueue(&client, r#"{"dedupe_for_ms": 3600000}"#, "").await;
    assert_eq!(answer, "created");
    let token = queue.again().await;
    assert!(queue.complete(token).await);
    let ended_ago = async |time: &str| {
        queue
            .execute(&format!(
                "update fencepost.outcome set ended_at = now() - interval '{time}' where id = {second}"
            ))
            .await;
    };
    ended_ago("59 minutes").await;
    assert_eq!(
        enqueue(&client, unfinished, "").await,
        is("existing", second)
    );
    // What was ended is not replaced.
    assert_eq!(enqueue(&client, REPLACE, "").await, is("existing", second));
    ended_ago("61 minutes").await;
    let (third, answer) = enqueue(&client, REPLACE, "").await;
    assert!(third != second && answer == "created");
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_task_that_waits_is_replaced_with_its_due_time_and_its_place() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let later = ", delay => '1 hour', concurrency_key => 'a'";
    let (first, _) = enqueue(&client, REPLACE, later).await;
    let (second, answer) = enqueue(&client, REPLACE, ", concurrency_key => 'a'").await;
    assert_eq!(answer, "replaced");
    let ended = queue.outcome(first).await.unwrap();
    assert_eq!(ended.state, CANCELLED);
    assert_eq!(ended.error.0.as_deref(), Some("replaced"));
    assert!(ended.error.1.unwrap().contains(&second.to_string()));
    // It has its key, which the next one waits for, and gives up when it is replaced.
    let behind = queue.enqueue_with("concurrency_key => 'a'").await;
    let (third, answer) = enqueue(&client, REPLACE, "").await;
    assert_eq!(answer, "replaced");
    let looks = "select count(*) from fencepost.key_look where due_at <= now()";
    assert!(queue.number(looks).await > 0);
    queue
        .execute("select fencepost.free_keys(array[fencepost.key_hash(1, 'a')])")
        .await;
    assert_eq!(queue.row(behind).await.hold, 0);
    // Delivered once, it is no longer to be replaced, also while it waits for its retry.
    let tokens = queue.claim(10).await;
    let token = *tokens.iter().find(|token| token.id == third).unwrap();
    assert_eq!(enqueue(&client, REPLACE, "").await, is("existing", third));
    let retry = Return {
        delay: Some(Duration::from_secs(60)),
        ..failure(token, Move::Retry)
    };
    queue.give_back(retry).await;
    assert_eq!(enqueue(&client, REPLACE, "").await, is("existing", third));
    assert_eq!(enqueue(&client, "{}", "").await, is("existing", third));
    queue.assert_sound().await;
}

#[tokio::test]
async fn neither_members_nor_locked_tasks_are_replaced() {
    let queue = Queue::new().await;
    let (client, mut holder) = (queue.client().await, queue.client().await);
    let start = "select task_ids[1] from fencepost.start_workflow(array['q'], array['t'], array['1'::bytea],
        dispatch_key => array['k'])";
    let member: TaskId = client.query_one(start, &[]).await.unwrap().get(0);
    assert_eq!(enqueue(&client, REPLACE, "").await, is("existing", member));
    queue.execute("delete from fencepost.dispatch_key").await;
    let (first, _) = enqueue(&client, "{}", "").await;
    let lock = holder.transaction().await.unwrap();
    lock.execute(
        "select from fencepost.live where id = $1 for update",
        &[&first],
    )
    .await
    .unwrap();
    assert_eq!(enqueue(&client, REPLACE, "").await, is("existing", first));
    lock.rollback().await.unwrap();
    assert_eq!(enqueue(&client, REPLACE, "").await.1, "replaced");
}

#[tokio::test]
async fn of_one_batch_the_first_has_the_key_or_the_last_that_replaces() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let enqueue = async |options: &str| {
        let call = format!(
            "select task_id, answer
            from fencepost.enqueue_many(array['q'], array['t'], array['1', '2', '3', '4']::bytea[],
                dispatch_key => array['a', 'a', null, 'a'], options => {options})
            order by ordinal"
        );
        let rows = client.query(&call, &[]).await.unwrap();
        let answers: Vec<(TaskId, String)> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        answers
    };
    let kept = enqueue("null").await;
    assert_eq!(kept[1], is("existing", kept[0].0));
    assert_eq!(kept[2].1, "created");
    assert_eq!(kept[3], is("existing", kept[0].0));
    let replace = format!("array['{{}}', '{REPLACE}', '{{}}', '{{}}']::jsonb[]");
    let replaced = enqueue(&replace).await;
    assert_eq!(replaced[1].1, "replaced");
    assert_eq!(replaced[0], is("existing", replaced[1].0));
    assert_eq!(replaced[3], is("existing", replaced[1].0));
    let body = format!(
        "select count(*) from fencepost.task where id = {} and payload = '2'",
        replaced[1].0
    );
    assert_eq!(queue.number(&body).await, 1);
    let live = "select count(*) from fencepost.live";
    assert_eq!(queue.number(live).await, 3);
    queue.assert_sound().await;
}

/// Claims, puts back, claims again and ends whatever there is, until all others are gone.
async fn work(queue: Arc<Queue>, gone: CancellationToken) {
    while !gone.is_cancelled() {
        for token in queue.claim(1).await {
            queue.give_back(failure(token, Move::Retry)).await;
        }
        for token in queue.claim(1).await {
            // Another statement may have the row for a moment.
            while queue.live(token.id).await.is_some() {
                queue.complete(token).await;
            }
        }
    }
}

#[tokio::test]
async fn of_many_who_replace_at_once_one_task_is_left_and_every_other_one_says_why() {
    const CLIENTS: usize = 8;
    const TIMES: usize = 10;
    for with_worker in [false, true] {
        let queue = Arc::new(Queue::new().await);
        let gone = CancellationToken::new();
        let (mut clients, mut workers) = (JoinSet::new(), JoinSet::new());
        if with_worker {
            workers.spawn(work(Arc::clone(&queue), gone.clone()));
        }
        for _ in 0..CLIENTS {
            let queue = Arc::clone(&queue);
            clients.spawn(async move {
                let client = queue.client().await;
                let mut answers = Vec::new();
                for _ in 0..TIMES {
                    let options = r#"{"on_duplicate": "replace", "dedupe_for_ms": 0}"#;
                    answers.push(enqueue(&client, options, "").await);
                    let live = "select count(*) from fencepost.live";
                    assert!(queue.number(live).await <= 1);
                }
                answers
            });
        }
        let mut answers = Vec::new();
        while let Some(of_one) = clients.join_next().await {
            answers.extend(of_one.unwrap());
        }
        gone.cancel();
        while let Some(ended) = workers.join_next().await {
            ended.unwrap();
        }
        assert_eq!(answers.len(), CLIENTS * TIMES);
        let count = |wanted: &str| {
            answers
                .iter()
                .filter(|(_, answer)| answer == wanted)
                .count()
        };
        let (created, replaced) = (count("created"), count("replaced"));
        let tasks = queue.number("select count(*) from fencepost.task").await;
        assert_eq!(tasks, i64::try_from(created + replaced).unwrap());
        let ended = "select count(*) from fencepost.outcome where error_class = 'replaced'";
        let ended = queue.number(ended).await;
        assert_eq!(ended, i64::try_from(replaced).unwrap());
        if !with_worker {
            // Each one has replaced the one before.
            assert_eq!((created, replaced), (1, CLIENTS * TIMES - 1));
        }
        queue.assert_sound().await;
    }
}

#[tokio::test]
async fn every_door_says_what_came_of_it_and_refuses_the_same_options() {
    let mut producers = Producers::start().await;
    let options = json!({"on_duplicate": "replace", "dedupe_for_ms": 1000});
    let body = json!({"task_queue": "q", "task_type": "t", "payload": 1, "dispatch_key": "k", "options": options});
    let mut last = String::new();
    for expected in ["created", "replaced"] {
        let answer = producers.post("/v1/tasks", body.to_string()).await;
        assert_eq!(answer.status, 201);
        assert_eq!(answer.json()["answer"], expected);
        last = answer.json()["task_id"].as_str().unwrap().to_owned();
    }
    let mut kept = body.clone();
    kept["options"] = json!({"on_duplicate": "keep"});
    let answer = producers.post("/v1/tasks", kept.to_string()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json(),
        json!({"task_id": last, "created": false, "answer": "existing"})
    );
    let task = NewTask {
        task_queue: "q".into(),
        task_type: "t".into(),
        payload: "1".into(),
        dispatch_key: Some("k".into()),
        options: Some(options.to_string()),
        ..NewTask::default()
    };
    let request = EnqueueRequest { tasks: vec![task] };
    let answered = producers.grpc.enqueue(request).await.unwrap().into_inner();
    assert!(answered.tasks[0].created);
    assert_eq!(answered.tasks[0].answer, "replaced");
    let args = [
        "enqueue", "--queue", "q", "--type", "t", "--key", "k", "--output", "json",
    ];
    let flags = [
        "--on-duplicate",
        "replace",
        "--dedupe-for",
        "1s",
        "--options",
        r#"{"trace_context": "x"}"#,
    ];
    let output = producers
        .command(&[&args[..], &flags[..]].concat(), b"")
        .await;
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["answer"], "replaced");
    let client = producers.db.connect().await;
    let stored = "select options from fencepost.task where id = $1::text::bigint";
    let id = line["task_id"].as_str().unwrap();
    let stored: serde_json::Value = client.query_one(stored, &[&id]).await.unwrap().get(0);
    assert_eq!(
        stored,
        json!({"on_duplicate": "replace", "dedupe_for_ms": 1000, "trace_context": "x"})
    );
    for bad in [
        json!({"on_duplicate": "both"}),
        json!({"on_duplicate": null}),
        json!({"dedupe_for_ms": -1}),
        json!({"dedupe_for_ms": 1.5}),
        json!({"dedupe_for_ms": 31_536_000_001_i64}),
        json!({"dedupe_for_ms": "1"}),
    ] {
        let mut body = body.clone();
        body["options"] = bad.clone();
        let answer = producers.post("/v1/tasks", body.to_string()).await;
        let expected = (400, "FP-009".to_owned(), "options".to_owned());
        assert_eq!(answer.problem(), expected, "{bad}");
        let output = producers
            .command(&[&args[..], &["--options", &bad.to_string()]].concat(), b"")
            .await;
        assert_eq!(output.status.code(), Some(2), "{bad}");
    }
}
