//! The code of docs/tutorial.md, run as it stands there.

use std::path::PathBuf;
use std::time::Duration;

use fencepost::worker::{Failure, Options, Success, Task, Worker};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::documents::{blocks, read};
use crate::foreign_workers::python;
use crate::lifecycle::SHORT;
use crate::support::{Replica, TestDb, eventually};

const STEP: Duration = Duration::from_secs(20);
const TUTORIAL: &str = "docs/tutorial.md";

async fn buy(
    client: &mut tokio_postgres::Client,
    purchase: i64,
    mail: &str,
) -> Result<i64, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let insert = "insert into purchase (id, mail) values ($1, $2)";
    transaction.execute(insert, &[&purchase, &mail]).await?;
    let enqueue = "select task_id from fencepost.enqueue(
        'mails', 'receipt', jsonb_build_object('purchase', $1::bigint),
        dispatch_key => 'receipt-' || $1::bigint)";
    let row = transaction.query_one(enqueue, &[&purchase]).await?;
    transaction.commit().await?;
    Ok(row.get(0))
}

async fn serve(
    pool: fencepost::store::Pool,
    replica: String,
    stop: CancellationToken,
) -> Result<(), fencepost::worker::Error> {
    let worker = Worker::new(Options {
        connect: vec![replica],
        task_queue: "mails".into(),
        ..Options::default()
    })
    .handle("receipt", move |task: Task| {
        let pool = pool.clone();
        async move {
            let order: serde_json::Value = task.json()?;
            let broken = |error: String| Failure::retryable("database", error);
            let client = pool
                .get()
                .await
                .map_err(|error| broken(error.to_string()))?;
            // A delivery that was overtaken has a lower fence, and finds nothing to write.
            let update = "update purchase set mailed_at = now(), fence = $2
                where id = $1 and fence < $2";
            let changed = client
                .execute(update, &[&order["purchase"].as_i64(), &task.fence()])
                .await;
            changed.map_err(|error| broken(error.to_string()))?;
            Ok(Success::json(serde_json::json!({ "mailed": true })))
        }
    });
    worker.run(async move { stop.cancelled().await }).await
}

#[tokio::test]
async fn the_outbox_in_sql_python_and_rust_sends_each_mail_once() {
    let test = TestDb::new().await;
    let mut db = test.connect().await;
    let replica = Replica::start(&test.url(), SHORT).await;
    let sql = blocks(TUTORIAL, "sql");
    for block in &sql {
        db.batch_execute(block).await.unwrap();
    }
    let script = &blocks(TUTORIAL, "python")[0];
    let output = Command::new(python().await)
        .args(["-c", script])
        .env("DATABASE_URL", test.url())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    buy(&mut db, 3, "edsger@example.com").await.unwrap();
    buy(&mut db, 3, "twice@example.com").await.unwrap_err();

    let stop = CancellationToken::new();
    let running = tokio::spawn(serve(test.pool(), replica.url(), stop.clone()));
    eventually(STEP, async || {
        let mailed = "select count(*) from purchase where mailed_at is not null and fence > 0";
        let done = "select count(*) from fencepost.tasks where state = 'done'";
        let mailed: i64 = db.query_one(mailed, &[]).await.unwrap().get(0);
        let done: i64 = db.query_one(done, &[]).await.unwrap().get(0);
        (mailed == 3 && done == 3).then_some(())
    })
    .await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// Without indentation, as a document shows it.
fn flat(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_rust_of_the_tutorial_is_the_code_that_runs_here() {
    let this = flat(&read(PathBuf::from(file!())));
    let shown = blocks(TUTORIAL, "rust");
    assert_eq!(shown.len(), 2);
    for block in shown {
        assert!(this.contains(&flat(&block)), "{block}");
    }
}
