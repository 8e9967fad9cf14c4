//! Waiting for the end of a task, over replicas.

use std::time::Duration;

use fencepost::store::tasks::Parts;
use futures_util::{StreamExt as _, stream};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::support::tasks::{count, enqueue, enqueue_many};
use crate::support::{Operator, Producers, Replica, ScriptedWorker, TestDb, eventually, fencepost};

const PATIENCE: Duration = Duration::from_secs(40);

/// What replicas tell each other.
pub struct Overheard {
    payloads: mpsc::Receiver<String>,
    _listening: JoinSet<()>,
    _client: tokio_postgres::Client,
}

impl Overheard {
    pub async fn at(db: &TestDb) -> Self {
        let (client, mut connection) = tokio_postgres::connect(&db.url(), NoTls).await.unwrap();
        let (heard, payloads) = mpsc::channel(10_000);
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(notification) = message {
                    heard.send(notification.payload().to_owned()).await.ok();
                }
            }
        });
        client.batch_execute("listen fencepost").await.unwrap();
        Self {
            payloads,
            _listening: listening,
            _client: client,
        }
    }

    /// Waits for these words; answers what was said before them.
    pub async fn hears(&mut self, wanted: &str) -> Vec<String> {
        let heard = async {
            let mut before = Vec::new();
            while let Some(payload) = self.payloads.recv().await {
                if payload == wanted {
                    return before;
                }
                before.push(payload);
            }
            panic!("the connection ended");
        };
        let heard = tokio::time::timeout(PATIENCE, heard).await;
        heard.unwrap_or_else(|_| panic!("nobody said {wanted:?}"))
    }

    /// What has been said by now.
    fn so_far(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.payloads.try_recv().ok()).collect()
    }
}

#[tokio::test]
async fn a_wait_at_one_replica_hears_of_the_end_at_another() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut overheard = Overheard::at(&db).await;
    let here = Replica::start(&db.url(), &[]).await;
    let there = Replica::start(&db.url(), &[]).await;
    let mut worker = ScriptedWorker::connect(&there.url()).await;
    // Nobody waits: nothing is told.
    let unheard = enqueue(&client, "").await;
    let task = worker.accept_next().await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    assert_eq!(task.task_id, unheard);

    let operator = Operator::of(&here);
    for round in 0..3 {
        let id = enqueue(&client, "").await;
        let task = worker.accept_next().await;
        let path = format!("/v1/tasks/{id}/wait?timeout=60s");
        let waited = operator.get(&path);
        let ending = async {
            if round == 0 {
                overheard.hears("awaiting").await;
                assert_eq!(count(&client, AWAITING).await, 1);
            }
            worker.succeed(&task, r#"{"round": 1}"#).await;
            worker.recorded(&task).await;
        };
        let (view, ()) = tokio::join!(waited, ending);
        assert_eq!(
            (&view["ended"], &view["state"]),
            (&json!(true), &json!("done"))
        );
        assert_eq!(view["result"], json!({"round": 1}));
    }
    overheard.hears("ended").await;
    // Nobody waits any more, which is said after a while.
    eventually(PATIENCE, async || {
        (count(&client, AWAITING).await == 0).then_some(())
    })
    .await;
    drop((here, there));
}

const AWAITING: &str =
    "select count(*) from fencepost.dispatcher where awaiting and dead_at is null";

#[tokio::test]
async fn nothing_is_told_while_nobody_waits() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut overheard = Overheard::at(&db).await;
    let replicas = [
        Replica::start(&db.url(), &[]).await,
        Replica::start(&db.url(), &[]).await,
    ];
    let mut worker = ScriptedWorker::connect(&replicas[0].url()).await;
    for _ in 0..10 {
        enqueue(&client, "").await;
        let task = worker.accept_next().await;
        worker.succeed(&task, "1").await;
        worker.recorded(&task).await;
    }
    // In order: what was told before is heard before.
    client
        .batch_execute("notify fencepost, 'over'")
        .await
        .unwrap();
    let mut said = Vec::new();
    while said.last().is_none_or(|last| last != "over") {
        said.push(overheard.payloads.recv().await.unwrap());
        said.extend(overheard.so_far());
    }
    assert!(
        !said.iter().any(|one| one == "ended" || one == "awaiting"),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_thousand_waits_cost_one_statement_a_look() {
    let side = Producers::start().await;
    let client = side.db.connect().await;
    let ids = enqueue_many(&client, 1000).await;
    let mut waits = JoinSet::new();
    for id in &ids {
        let (state, id) = (side.state.clone(), *id);
        waits.spawn(async move { state.wait(id, Duration::from_mins(1)).await });
    }
    side.somebody_waits().await;
    let commits = "select xact_commit from pg_stat_database where datname = current_database()";
    // Sessions report late what they have done, so the first looks of each wait come into the first spans.
    eventually(PATIENCE, async || {
        let before = count(&client, commits).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = count(&client, commits).await;
        (after - before < 200).then_some(())
    })
    .await;
    assert_eq!(waits.len(), 1000);
    assert!(waits.try_join_next().is_none());
    let end = "with gone as (delete from fencepost.live returning id)
        insert into fencepost.outcome (id, ended_at, attempt, state) select id, now(), 0, 1 from gone";
    assert_eq!(client.execute(end, &[]).await.unwrap(), 1000);
    let ended = waits.join_all().await;
    assert_eq!(ended.len(), 1000);
    assert!(ended.iter().all(|task| task.as_ref().unwrap().ended));
}

#[tokio::test]
async fn a_wait_tells_how_the_task_ended_or_that_there_is_none() {
    let side = Producers::start().await;
    let client = side.db.connect().await;
    let waited = async |id: i64| side.get(&format!("/v1/tasks/{id}/wait?timeout=1s")).await;
    for (state, name) in [(1, "done"), (2, "failed"), (3, "cancelled")] {
        let id = enqueue(&client, "").await;
        assert_eq!(waited(id).await.json()["ended"], false);
        side.end(id, state, (state == 1).then_some("7")).await;
        let view = waited(id).await.json();
        assert_eq!(
            (&view["ended"], &view["state"]),
            (&json!(true), &json!(name))
        );
        assert_eq!(view.get("result_expired"), None);
        if state == 1 {
            // As retention does.
            let expire = "update fencepost.outcome set result = null where id = $1";
            client.execute(expire, &[&id]).await.unwrap();
            assert_eq!(waited(id).await.json()["result_expired"], true);
            let parts = Parts {
                payload: false,
                result: false,
            };
            assert!(side.state.get(id, parts).await.unwrap().result_expired);
        }
        let output = fencepost(&side.db.url(), &["task", "wait", &id.to_string()]).await;
        assert_eq!(output.status.code(), Some(i32::from(state != 1)));
    }
    let problem = waited(i64::MAX).await.problem();
    assert_eq!(problem, (404, "FP-104".into(), "task_id".into()));
    let waiting = enqueue(&client, "").await.to_string();
    let late = ["task", "wait", &waiting, "--timeout", "50ms"];
    let output = fencepost(&side.db.url(), &late).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has not ended in time"));
    let none = fencepost(&side.db.url(), &["task", "wait", &i64::MAX.to_string()]).await;
    assert_eq!(none.status.code(), Some(2));
}

#[tokio::test]
async fn a_replica_that_begins_to_drain_sends_waits_elsewhere_at_once() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    let mut replica = Replica::start(&db.url(), &[]).await;
    let operator = Operator::of(&replica);
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let id = enqueue(&client, "").await;
    let task = worker.accept_next().await;
    let path = format!("/v1/tasks/{id}/wait?timeout=60s");
    let waited = operator.call("GET", &path, "");
    let stopping = async {
        eventually(PATIENCE, async || {
            (count(&client, AWAITING).await == 1).then_some(())
        })
        .await;
        replica.signal(Signal::SIGTERM);
    };
    let ((status, problem), ()) = tokio::join!(waited, stopping);
    assert_eq!((status, &problem["code"]), (503, &json!("FP-121")));
    // The drain goes on: the task that was waited for is still running.
    assert!(replica.is_up());
    worker.sent_away().await;
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    assert!(replica.ended().await.success());
}
