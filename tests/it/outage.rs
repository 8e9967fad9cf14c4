//! The database goes away, answers slowly, or falls silent: replicas and workers stay up, nothing is lost, and work
//! goes on by itself.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use fencepost::embedded::{Embedded, Options};
use fencepost::proto::worker::Verdict;
use fencepost::store::{Settings, migrate};
use fencepost::worker::{Options as WorkerOptions, Success, Task, Worker};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::tasks::{DONE, count, ended, enqueue, enqueue_many};
use crate::support::{Replica, ScriptedWorker, TcpProxy, TestDb, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server of one test's own, to be killed.
async fn server() -> Embedded {
    Embedded::start(Options {
        durable: false,
        max_connections: 60,
        ..Options::default()
    })
    .await
    .unwrap()
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

/// An SDK worker in this process that answers at once; it stops with the returned token.
struct Echo {
    stop: CancellationToken,
    run: JoinSet<Result<(), fencepost::worker::Error>>,
}

impl Echo {
    fn start(connect: Vec<String>, slots: u32) -> Self {
        let options = WorkerOptions {
            connect,
            task_queue: "q".into(),
            slots,
            ..WorkerOptions::default()
        };
        let worker = Worker::new(options).handle("t", async |_: Task| Ok(Success::json(1)));
        let (stop, mut run) = (CancellationToken::new(), JoinSet::new());
        run.spawn(worker.run(stop.clone().cancelled_owned()));
        Self { stop, run }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        self.run.join_next().await.unwrap().unwrap().unwrap();
    }
}

async fn wait_until_done(db: &tokio_postgres::Client, number: usize) {
    let select = "select count(*) from fencepost.outcome where state = 1";
    eventually(PATIENCE, async || {
        (usize::try_from(count(db, select).await).unwrap() >= number).then_some(())
    })
    .await;
}

/// Whatever the replicas went through: each task has ended, once, as done.
async fn assert_all_done(db: &tokio_postgres::Client, ids: &[i64]) {
    wait_until_done(db, ids.len()).await;
    let rows = db
        .query("select id, state from fencepost.outcome", &[])
        .await
        .unwrap();
    let ends: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(rows.len(), ids.len(), "no task ends twice");
    assert!(ids.iter().all(|id| ends.contains(id)));
    assert!(rows.iter().all(|row| row.get::<_, i16>(1) == DONE));
    assert_eq!(count(db, "select count(*) from fencepost.live").await, 0);
}

#[tokio::test]
async fn a_database_that_is_down_at_the_start_is_waited_for_and_named_once() {
    let mut server = server().await;
    let url = server.url();
    migrate::run(&Settings::new(url.clone())).await.unwrap();
    server.kill().await.unwrap();
    let mut replica = Replica::spawn(&url, &[]).await;
    let worker = Echo::start(vec![replica.url()], 4);
    replica.readyz_turns(503).await;
    eventually(PATIENCE, async || {
        (replica.said("the database is away") > 0).then_some(())
    })
    .await;
    server.restart().await.unwrap();
    replica.ready().await;
    let db = connect(&url).await;
    let id = enqueue(&db, "").await;
    assert_eq!(ended(&db, id).await.state, DONE);
    assert!(replica.is_up());
    assert_eq!(replica.said("the database is away"), 1, "{}", replica.log());
    assert_eq!(replica.said("the database answers"), 1, "{}", replica.log());
    worker.stop().await;
}

#[tokio::test]
async fn a_database_without_schema_is_waited_for_and_named_once() {
    let test = TestDb::empty().await;
    let replica = Replica::spawn(&test.url(), &[]).await;
    replica.readyz_turns(503).await;
    eventually(PATIENCE, async || {
        (replica.said("waiting for a migration") > 0).then_some(())
    })
    .await;
    migrate::run(&test.settings()).await.unwrap();
    replica.ready().await;
    assert_eq!(
        replica.said("waiting for a migration"),
        1,
        "{}",
        replica.log()
    );
}

#[tokio::test]
async fn work_goes_on_by_itself_after_the_server_has_crashed_under_load() {
    let mut server = server().await;
    let url = server.url();
    migrate::run(&Settings::new(url.clone())).await.unwrap();
    let env = [("REPLICA__BEAT", "500ms")];
    let mut replicas = [
        Replica::start(&url, &env).await,
        Replica::start(&url, &env).await,
    ];
    let workers = [
        Echo::start(vec![replicas[0].url()], 32),
        Echo::start(vec![replicas[1].url()], 32),
    ];
    let db = connect(&url).await;
    let mut ids = enqueue_many(&db, 1500).await;
    wait_until_done(&db, 300).await;
    server.kill().await.unwrap();
    drop(db);
    for replica in &replicas {
        replica.readyz_turns(503).await;
    }
    server.restart().await.unwrap();
    let back = Instant::now();
    let db = connect(&url).await;
    let before: i64 = count(&db, "select count(*) from fencepost.outcome").await;
    ids.extend(enqueue_many(&db, 500).await);
    eventually(Duration::from_secs(10), async || {
        (count(&db, "select count(*) from fencepost.outcome").await > before + 200).then_some(())
    })
    .await;
    for replica in &mut replicas {
        replica.ready().await;
        assert!(replica.is_up());
        assert_eq!(replica.said("the database is away"), 1, "{}", replica.log());
        assert_eq!(replica.said("declared dead"), 0, "{}", replica.log());
    }
    assert!(back.elapsed() < PATIENCE);
    assert_all_done(&db, &ids).await;
    assert_eq!(
        count(&db, "select count(*) from fencepost.failure").await,
        0,
        "an outage costs no attempt"
    );
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test]
async fn backends_that_are_killed_twice_a_second_lose_nothing() {
    let test = TestDb::new().await;
    let mut replica = Replica::start(&test.url(), &[]).await;
    let worker = Echo::start(vec![replica.url()], 64);
    let db = test.connect().await;
    let mut ids = Vec::new();
    let mut strikes = tokio::time::interval(Duration::from_millis(500));
    for _ in 0..16 {
        strikes.tick().await;
        ids.extend(enqueue_many(&db, 250).await);
        let strike = "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid() order by random() limit 2";
        db.query(strike, &[]).await.unwrap();
    }
    let over = Instant::now();
    assert_all_done(&db, &ids).await;
    assert!(
        over.elapsed() < Duration::from_secs(10),
        "{:?}",
        over.elapsed()
    );
    assert!(replica.is_up());
    assert_eq!(
        count(&db, "select count(*) from fencepost.failure").await,
        0
    );
    worker.stop().await;
}

#[tokio::test]
async fn results_that_come_while_the_database_is_away_are_kept() {
    let test = TestDb::new().await;
    let (proxy, through) = TcpProxy::before(&test.url()).await;
    let replica = Replica::start(&through, &[]).await;
    let mut worker = ScriptedWorker::connect_with_slots(&replica.url(), 50).await;
    let db = test.connect().await;
    let ids = enqueue_many(&db, 50).await;
    let mut tasks = Vec::new();
    for _ in &ids {
        tasks.push(worker.accept_next().await);
    }
    proxy.hold();
    proxy.cut();
    for task in &tasks[..25] {
        worker.succeed(task, "1").await;
    }
    replica.readyz_turns(503).await;
    for task in &tasks[25..] {
        worker.succeed(task, "1").await;
    }
    assert_eq!(
        count(&db, "select count(*) from fencepost.outcome").await,
        0
    );
    proxy.release();
    for _ in &tasks {
        assert_eq!(worker.ack().await.verdict(), Verdict::Recorded);
    }
    assert_all_done(&db, &ids).await;
    assert_eq!(
        count(
            &db,
            "select count(*) from fencepost.outcome where fence = 1"
        )
        .await,
        50
    );
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_not_done_twice() {
    let test = TestDb::new().await;
    let (proxy, through) = TcpProxy::before(&test.url()).await;
    let replica = Replica::start(&through, &[("TASKS__BACKOFF_BASE", "20ms")]).await;
    let mut worker = ScriptedWorker::connect_with_slots(&replica.url(), 20).await;
    let db = test.connect().await;
    // The connections are reset again and again, at any point of a claim, a settlement, a release.
    let ids = enqueue_many(&db, 400).await;
    let mut cuts = tokio::time::interval(Duration::from_millis(350));
    let (mut struck, mut done) = (0, 0);
    let mut starts: HashSet<(i64, i64)> = HashSet::new();
    while done < ids.len() {
        tokio::select! {
            _ = cuts.tick(), if struck < 20 => {
                proxy.cut();
                struck += 1;
            }
            task = worker.accept_next() => {
                assert!(starts.insert((task.task_id, task.fence)), "one start for each fence");
                worker.succeed(&task, "1").await;
                worker.recorded(&task).await;
                done += 1;
            }
        }
    }
    assert_all_done(&db, &ids).await;
    assert_eq!(starts.len(), ids.len(), "no task was started twice");
}

/// The port from which the listening connection reaches the server.
async fn listener(db: &tokio_postgres::Client) -> (i32, u16) {
    let select = "select pid, client_port from pg_stat_activity
        where datname = current_database() and application_name = 'fencepost listen'";
    let row = eventually(PATIENCE, async || db.query_opt(select, &[]).await.unwrap()).await;
    (row.get(0), u16::try_from(row.get::<_, i32>(1)).unwrap())
}

/// Waits until the replica sleeps, so that the next enqueue notifies it.
async fn asleep(db: &tokio_postgres::Client) {
    let select = "select count(*) from fencepost.dispatcher where sleeping and dead_at is null";
    eventually(PATIENCE, async || {
        (count(db, select).await == 1).then_some(())
    })
    .await;
}

/// How long a task waits from its enqueue to its delivery.
async fn pickup(db: &tokio_postgres::Client, worker: &mut ScriptedWorker) -> Duration {
    asleep(db).await;
    let since = Instant::now();
    let id = enqueue(db, "").await;
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, id);
    let took = since.elapsed();
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    took
}

#[tokio::test]
async fn a_listener_that_falls_silent_is_found_and_made_anew() {
    let test = TestDb::new().await;
    let (proxy, through) = TcpProxy::before(&test.url()).await;
    let replica = Replica::start(&through, &[("WAKE__POLL", "10s")]).await;
    let db = test.connect().await;
    let (_, port) = listener(&db).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let fast = Duration::from_secs(2);
    for _ in 0..3 {
        let took = pickup(&db, &mut worker).await;
        assert!(took < fast, "{took:?} with a listener");
    }
    // Nothing arrives any more on that connection, and nobody says so.
    proxy.hold_one("fencepost listen");
    let since = Instant::now();
    let took = pickup(&db, &mut worker).await;
    assert!(
        took < Duration::from_secs(11),
        "{took:?}: the poll works alone"
    );
    eventually(Duration::from_secs(15), async || {
        let (_, now) = listeners(&db, port).await?;
        (now != port).then_some(())
    })
    .await;
    assert!(
        since.elapsed() < Duration::from_secs(15),
        "{:?}",
        since.elapsed()
    );
    for _ in 0..3 {
        let took = pickup(&db, &mut worker).await;
        assert!(took < fast, "{took:?} with the new listener");
    }
}

/// A listening connection other than the one from `port`, which the server may still believe in.
async fn listeners(db: &tokio_postgres::Client, port: u16) -> Option<(i32, u16)> {
    let select = "select pid, client_port from pg_stat_activity
        where datname = current_database() and application_name = 'fencepost listen' and client_port <> $1
            and state = 'idle' and query <> ''";
    let row = db.query_opt(select, &[&i32::from(port)]).await.unwrap()?;
    Some((row.get(0), u16::try_from(row.get::<_, i32>(1)).unwrap()))
}

#[tokio::test]
async fn a_listener_that_is_killed_is_made_anew() {
    let test = TestDb::new().await;
    let replica = Replica::start(&test.url(), &[("WAKE__POLL", "20s")]).await;
    let db = test.connect().await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let (pid, _) = listener(&db).await;
    pickup(&db, &mut worker).await;
    db.query("select pg_terminate_backend($1)", &[&pid])
        .await
        .unwrap();
    eventually(PATIENCE, async || {
        (listener(&db).await.0 != pid).then_some(())
    })
    .await;
    for _ in 0..3 {
        let took = pickup(&db, &mut worker).await;
        assert!(took < Duration::from_secs(3), "{took:?}: far from the poll");
    }
}

#[tokio::test]
async fn without_a_listener_the_poll_works_alone() {
    let test = TestDb::new().await;
    let replica = Replica::start(
        &test.url(),
        &[("WAKE__LISTEN", "false"), ("WAKE__POLL", "500ms")],
    )
    .await;
    let db = test.connect().await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    for _ in 0..5 {
        let since = Instant::now();
        let id = enqueue(&db, "").await;
        let task = worker.accept_next().await;
        assert!(
            since.elapsed() < Duration::from_millis(1200),
            "{:?}",
            since.elapsed()
        );
        assert_eq!(task.task_id, id);
        worker.succeed(&task, "1").await;
        worker.recorded(&task).await;
    }
    let select = "select count(*) from pg_stat_activity
        where datname = current_database() and application_name = 'fencepost listen'";
    assert_eq!(count(&db, select).await, 0);
    let sleeping = "select count(*) from fencepost.dispatcher where sleeping";
    assert_eq!(count(&db, sleeping).await, 0, "nobody is to notify it");
}
