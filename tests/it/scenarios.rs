//! What goes wrong in systems like this one, where no other file has it yet, and where each of those is.
//!
//! | scenario | test |
//! |---|---|
//! | late completion is fenced | `frozen::a_frozen_worker_s_late_report_is_superseded`, `lifecycle::a_late_failure_never_ends_a_newer_delivery` |
//! | rescue versus finish | `tasks_that_finish_while_their_dead_replica_is_cleared_stay_finished`, `interleavings::a_success_that_meets_its_own_re_arm_counts` |
//! | rescue sweep must advance | `the_chores_see_past_a_crowd_of_healthy_claims` |
//! | same name, new life | `a_worker_of_the_same_name_inherits_nothing` |
//! | crash in the middle of assignment | `a_replica_killed_*` |
//! | reconnect keeps the work | `frozen::workers_of_a_killed_replica_go_on_with_their_tasks_at_another`, `sessions::a_worker_that_comes_back_in_time_goes_on_with_its_task` |
//! | dead holders do not hold slots | `frozen::tasks_of_a_killed_worker_are_tried_again_elsewhere`, `sessions::slots_are_free_again_whatever_way_a_delivery_ended` |
//! | poison task that kills its worker | `a_task_that_kills_its_workers_is_a_dead_letter_and_the_others_end` |
//! | NUL and odd JSON at the door | `doors::odd_json_is_judged_by_postgresql_alone_whatever_the_door`, `doors::an_odd_payload_refuses_its_batch_and_says_which_it_is` |
//! | NUL or over-size in the result | `lifecycle::an_oversize_result_ends_its_task_at_once`, `lifecycle::an_invalid_result_ends_its_task_and_none_of_its_neighbours` |
//! | payload larger than the worker accepts | `lifecycle::a_task_too_large_for_one_worker_goes_to_another`, `lifecycle::a_task_too_large_for_every_frame_is_a_dead_letter_before_it_is_sent` |
//! | required stays required | `placement::required_stays_required` |
//! | nobody serves this | `unserved::*`, `why::*` |
//! | kill the database under load | `outage::work_goes_on_by_itself_after_the_server_has_crashed_under_load`, `outage::backends_that_are_killed_twice_a_second_lose_nothing` |
//! | LISTEN dies quietly | `outage::a_listener_that_falls_silent_is_found_and_made_anew` |
//! | redrive keeps its rules | `redrives::*`, `dead_letters::*` |
//! | unique races and one bad row | `of_many_who_enqueue_one_key_at_once_one_makes_the_task`; due rows are read where they are, so nothing is promoted: the nearest batch with a bad row is that of results, `lifecycle::an_invalid_result_ends_its_task_and_none_of_its_neighbours` |
//! | throttled is not failed | `rates::*` |
//! | noisy neighbour, low priority is not for ever, dead holders under a quota | `tenants::*` |
//! | drain | `a_worker_and_its_replica_drain_together`, `a_second_signal_ends_a_worker_at_once`, `frozen::a_second_signal_ends_a_replica_at_once`, `frozen::what_is_left_at_the_drain_deadline_is_taken_up_without_a_loss` |
//! | all of them at random | `history::the_long_run_keeps_every_rule` |

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fencepost::domain::id::Token;
use fencepost::domain::settlement::Move;
use fencepost::proto::worker::{FailureKind, Register, Task, Verdict};
use fencepost::store::settle::{self, Completion, Return};
use fencepost::store::{Client, upkeep};
use fencepost::worker::ledger;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::lifecycle::Stage;
use crate::support::queue::{MAX_LOSSES, assert_sound, failure, success};
use crate::support::scripted_worker::{register, resuming, succeeded};
use crate::support::tasks::{DONE, FAILED, count, ended, enqueue, enqueue_many, failures, live};
use crate::support::{Queue, Replica, ScriptedWorker, TcpProxy, TestDb, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// As many rows as the chores move in one transaction.
const BATCH: i32 = 500;

/// Puts back what the dead hold until a look moves nothing; answers how many rows were found and not moved.
async fn clear_the_dead(client: &Client) -> usize {
    let mut missed = 0;
    loop {
        let orphans = upkeep::find_orphans(client, BATCH).await.unwrap();
        let returns: Vec<Return> = orphans
            .iter()
            .map(|orphan| Return {
                owner: Some(orphan.owner),
                ..failure(orphan.token, Move::ReArm)
            })
            .collect();
        let moved = settle::give_back(client, &returns, MAX_LOSSES)
            .await
            .unwrap();
        missed += orphans.len() - moved.len();
        if moved.is_empty() {
            return missed;
        }
    }
}

/// Reports successes as a settler does: what is locked just now is reported again.
async fn finish(client: &Client, tokens: &[Token]) {
    for some in tokens.chunks(5) {
        let mut open = some.to_vec();
        eventually(PATIENCE, async || {
            let batch: Vec<Completion> = open.iter().copied().map(success).collect();
            let done = settle::complete(client, &batch).await.unwrap();
            open.retain(|token| !done.iter().any(|ended| ended.id == token.id));
            open.is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn tasks_that_finish_while_their_dead_replica_is_cleared_stay_finished() {
    let queue = Queue::new().await;
    queue.enqueue(1_000).await;
    let tokens = queue.claim(1_000).await;
    let every_fourth = |from| tokens.iter().copied().skip(from).step_by(4);
    let (held, racing): (Vec<_>, Vec<_>) = (every_fourth(0).collect(), every_fourth(1).collect());
    queue.kill(queue.dispatcher).await;
    let (mut first, second, third) = (
        queue.client().await,
        queue.client().await,
        queue.client().await,
    );
    // A quarter ends between the look of the re-arm and its update, a quarter all through it.
    let open = first.transaction().await.unwrap();
    let batch: Vec<Completion> = held.iter().copied().map(success).collect();
    let done = settle::complete(&open, &batch).await.unwrap();
    assert_eq!(done.len(), held.len());
    let (missed, ()) = tokio::join!(clear_the_dead(&second), finish(&third, &racing));
    assert!(missed >= held.len(), "{missed} met");
    open.commit().await.unwrap();
    clear_the_dead(&second).await;
    assert!(
        upkeep::find_orphans(&second, 1).await.unwrap().is_empty(),
        "nothing is left claimed"
    );

    queue.assert_sound().await;
    let done: Vec<i64> = held.iter().chain(&racing).map(|token| token.id).collect();
    let query = "select count(*) from fencepost.outcome where state = 1 and id = any($1)";
    let row = third.query_one(query, &[&done]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 500);
    let query = "select count(*) from fencepost.live
        where state = 0 and (attempt, losses, epoch, fence) = (0, 1, 0, 1) and id <> all($1)";
    let row = third.query_one(query, &[&done]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 500);
    assert_eq!(
        queue.number("select count(*) from fencepost.live").await,
        500
    );
    let query = "select count(*) from fencepost.failure where id = any($1)";
    let held: Vec<i64> = held.iter().map(|token| token.id).collect();
    let row = third.query_one(query, &[&held]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0, "what ended first was never lost");
    assert_eq!(
        queue
            .number("select count(*) from fencepost.failure join fencepost.live using (id)")
            .await,
        500
    );
}

#[tokio::test]
async fn the_chores_see_past_a_crowd_of_healthy_claims() {
    let queue = Queue::new().await;
    queue.enqueue(20_010).await;
    let tokens = queue.claim(20_010).await;
    let late = tokens[20_000].id;
    let last: BTreeSet<Token> = tokens[20_000..].iter().copied().collect();
    assert_eq!(last.len(), 10);
    let client = queue.client().await;
    let past = format!(
        "update fencepost.live set deadline = clock_timestamp() - interval '1 ms' where id >= {late}"
    );
    queue.execute(&past).await;
    let overdue = upkeep::find_overdue(&client, BATCH).await.unwrap();
    assert_eq!(overdue.len(), 10);
    assert_eq!(
        overdue.iter().map(|row| row.token).collect::<BTreeSet<_>>(),
        last
    );

    let other = queue.join("other").await;
    let moved = format!("update fencepost.live set dispatcher = {other} where id >= {late}");
    queue.execute(&moved).await;
    queue.kill(other).await;
    let orphans = upkeep::find_orphans(&client, BATCH).await.unwrap();
    assert_eq!(orphans.len(), 10);
    assert_eq!(
        orphans.iter().map(|row| row.token).collect::<BTreeSet<_>>(),
        last
    );
}

#[tokio::test]
async fn a_worker_of_the_same_name_inherits_nothing() {
    let grace = Duration::from_millis(700);
    let stage = Stage::set(&[("WORKERS__RECONNECT_GRACE", "700ms")]).await;
    let pod = |instance: &str| Register {
        identity: "pod-a".into(),
        instance: instance.into(),
        slots: 6,
        ..register()
    };
    let proxy = TcpProxy::start(stage.replica.grpc()).await;
    let mut old = ScriptedWorker::connect_as(&proxy.url(), pod("1")).await;
    enqueue_many(&stage.db, 6).await;
    let mut held = take(&mut old, 6).await;
    // Its answer shows that all before it has been read.
    let read = held.pop().unwrap();
    old.succeed(&read, "1").await;
    old.recorded(&read).await;

    let killed = Instant::now();
    proxy.cut();
    old.ended().await;
    let mut new = ScriptedWorker::connect_as(&stage.replica.url(), pod("2")).await;
    assert!(new.welcome.resumed.is_empty());
    let again = take(&mut new, 5).await;
    let within = killed.elapsed();
    assert!(
        (grace..grace + Duration::from_secs(1)).contains(&within),
        "{within:?}"
    );
    assert_eq!(ids(&again), ids(&held));
    assert!(
        again
            .iter()
            .all(|task| (task.attempt, task.fence) == (2, 2))
    );
    for task in &held {
        new.succeed(task, "1").await;
        new.superseded(task).await;
    }
    for task in &again {
        assert_eq!(live(&stage.db, task.task_id).await.unwrap().attempt, 1);
    }
    settle_all(&mut new, &again).await;
    for task in &again {
        let end = ended(&stage.db, task.task_id).await;
        assert_eq!((end.state, end.attempt, end.fence), (DONE, 1, Some(2)));
    }
}

fn ids(tasks: &[Task]) -> BTreeSet<i64> {
    tasks.iter().map(|task| task.task_id).collect()
}

/// Accepts so many tasks.
async fn take(worker: &mut ScriptedWorker, number: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    for _ in 0..number {
        tasks.push(worker.task().await);
    }
    worker.accept(&tasks.iter().collect::<Vec<_>>()).await;
    tasks
}

/// Reports all as done, which must count.
async fn settle_all(worker: &mut ScriptedWorker, tasks: &[Task]) {
    let results = tasks.iter().map(|task| succeeded(task, "1")).collect();
    worker.report(results).await;
    for _ in tasks {
        assert_eq!(worker.ack().await.verdict(), Verdict::Recorded);
    }
}

/// Tasks in the hands of the replica that is killed, which are as many as its worker's slots.
const CROWD: usize = 200;

const MORTAL: &[(&str, &str)] = &[
    ("REPLICA__BEAT", "200ms"),
    ("REPLICA__DEAD_AFTER", "1500ms"),
];

/// A replica that is killed with tasks in its hands; another one takes over.
struct Crash {
    test: TestDb,
    db: tokio_postgres::Client,
    ids: BTreeSet<i64>,
    first: Replica,
}

impl Crash {
    /// The replica reaches the database at this URL.
    async fn set(test: TestDb, url: &str) -> Self {
        let db = test.connect().await;
        let first = Replica::start(url, MORTAL).await;
        let ids = enqueue_many(&db, i32::try_from(CROWD).unwrap()).await;
        Self {
            test,
            db,
            ids: ids.into_iter().collect(),
            first,
        }
    }

    async fn worker(&self) -> ScriptedWorker {
        ScriptedWorker::connect_as(&self.first.url(), crowd(&[])).await
    }

    /// All that was claimed, for as long as it is.
    async fn claimed(&self) -> i64 {
        count(
            &self.db,
            "select count(*) from fencepost.live where state = 1 and attempt = 0 and fence = 1",
        )
        .await
    }

    async fn second(&self) -> Replica {
        Replica::start(&self.test.url(), MORTAL).await
    }

    /// These come to the worker once more, with the loss of their replica and no attempt spent, and end.
    async fn ends_elsewhere(&self, worker: &mut ScriptedWorker, lost: &BTreeSet<i64>) {
        let again = take(worker, lost.len()).await;
        assert_eq!(ids(&again), *lost, "each of them once");
        assert!(
            again
                .iter()
                .all(|task| (task.attempt, task.fence) == (1, 2))
        );
        settle_all(worker, &again).await;
        for id in lost {
            let failures = failures(&self.db, *id).await;
            assert_eq!(failures, [(1, 1, "re_arm".into(), "replica_gone".into())]);
        }
    }

    /// Every task is done, and every slot is free: as many further tasks come at once.
    async fn is_over(&self, worker: &mut ScriptedWorker) {
        for id in &self.ids {
            let end = ended(&self.db, *id).await;
            assert_eq!((end.state, end.attempt), (DONE, 0));
        }
        let more = enqueue_many(&self.db, i32::try_from(CROWD).unwrap()).await;
        let tasks = take(worker, CROWD).await;
        assert_eq!(ids(&tasks), more.into_iter().collect());
        assert!(tasks.iter().all(|task| task.fence == 1));
        settle_all(worker, &tasks).await;
        assert_eq!(
            count(&self.db, "select count(*) from fencepost.live").await,
            0
        );
        assert_sound(&self.test.pool().get().await.unwrap()).await;
    }
}

fn crowd(held: &[&Task]) -> Register {
    Register {
        slots: u32::try_from(CROWD).unwrap(),
        ..resuming(held)
    }
}

#[tokio::test]
async fn a_replica_killed_between_claim_and_send_has_started_nothing() {
    let test = TestDb::new().await;
    let url = test.url();
    let mut crash = Crash::set(test, &url).await;
    // The bodies can't be read, so that what is claimed stays unsent.
    let mut locking = crash.test.connect().await;
    let lock = locking.transaction().await.unwrap();
    lock.batch_execute("lock table fencepost.task")
        .await
        .unwrap();
    let worker = crash.worker().await;
    eventually(PATIENCE, async || {
        (usize::try_from(crash.claimed().await).unwrap() == CROWD).then_some(())
    })
    .await;
    crash.first.kill().await;
    assert!(worker.ended().await.is_empty(), "nothing was sent");
    lock.rollback().await.unwrap();

    let second = crash.second().await;
    let mut worker = ScriptedWorker::connect_as(&second.url(), crowd(&[])).await;
    crash.ends_elsewhere(&mut worker, &crash.ids).await;
    crash.is_over(&mut worker).await;
}

#[tokio::test]
async fn a_replica_killed_between_send_and_acceptance_loses_nothing() {
    let test = TestDb::new().await;
    let url = test.url();
    let mut crash = Crash::set(test, &url).await;
    let mut worker = crash.worker().await;
    let mut sent = Vec::new();
    for _ in 0..CROWD {
        sent.push(worker.task().await);
    }
    assert_eq!(ids(&sent), crash.ids);
    crash.first.kill().await;
    assert!(worker.ended().await.is_empty(), "each was sent once");

    let second = crash.second().await;
    let mut worker = ScriptedWorker::connect_as(&second.url(), crowd(&[])).await;
    crash.ends_elsewhere(&mut worker, &crash.ids).await;
    crash.is_over(&mut worker).await;
}

#[tokio::test]
async fn a_replica_killed_with_unstored_results_leaves_them_to_its_workers() {
    let test = TestDb::new().await;
    let (proxy, through) = TcpProxy::before(&test.url()).await;
    let mut crash = Crash::set(test, &through).await;
    let mut worker = crash.worker().await;
    let sent = take(&mut worker, CROWD).await;
    proxy.hold();
    worker
        .report(sent.iter().map(|task| succeeded(task, "1")).collect())
        .await;
    // Refused without a look at the database, so its answer shows that the results have been read.
    worker.fail(&sent[0], FailureKind::Terminal, "twice").await;
    worker.superseded(&sent[0]).await;
    crash.first.kill().await;
    assert!(worker.ended().await.is_empty(), "each was sent once");
    assert_eq!(usize::try_from(crash.claimed().await).unwrap(), CROWD);

    // The worker comes back with half of its results, and knows of the others no more.
    let second = crash.second().await;
    let (kept, lost) = sent.split_at(CROWD / 2);
    let held = crowd(&kept.iter().collect::<Vec<_>>());
    let mut worker = ScriptedWorker::connect_as(&second.url(), held).await;
    assert_eq!(worker.welcome.resumed.len(), kept.len());
    settle_all(&mut worker, kept).await;
    crash.ends_elsewhere(&mut worker, &ids(lost)).await;
    for task in kept {
        assert_eq!(
            ended(&crash.db, task.task_id).await.fence,
            Some(1),
            "one start"
        );
        assert_eq!(failures(&crash.db, task.task_id).await, []);
    }
    crash.is_over(&mut worker).await;
}

/// A real `fencepost worker` of queue `q` and type `t`, killed when dropped.
fn worker_process(connect: &str, exec: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command
        .args(["worker", "--connect", connect, "--queue", "q"])
        .args(["--type", "t", "--exec", exec])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}

fn terminate(child: &Child) {
    let pid = child.id().expect("it runs");
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGTERM).unwrap();
}

async fn exit_code(child: &mut Child) -> Option<i32> {
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
    ended.expect("the worker does not end").unwrap().code()
}

#[tokio::test]
async fn a_task_that_kills_its_workers_is_a_dead_letter_and_the_others_end() {
    let stage = Stage::set(&[
        ("TASKS__MAX_LOSSES", "2"),
        ("WORKERS__RECONNECT_GRACE", "200ms"),
    ])
    .await;
    let poison = enqueue(&stage.db, "'\"poison\"'").await;
    let others = enqueue_many(&stage.db, 30).await;
    let crashes = Arc::new(AtomicU32::new(0));
    // Restarts whatever ends, until it is dropped.
    let mut supervisors = JoinSet::new();
    for node in ["n1", "n2", "n3"] {
        let (crashes, url) = (Arc::clone(&crashes), stage.replica.url());
        supervisors.spawn(async move {
            loop {
                // One slot: a neighbour in the same process would share its losses.
                let mut child = worker_process(
                    &url,
                    r#"case "$(cat)" in *poison*) kill -9 $PPID ;; esac"#,
                    &["--node", node, "--slots", "1"],
                )
                .spawn()
                .unwrap();
                child.wait().await.unwrap();
                crashes.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    assert_eq!(ended(&stage.db, poison).await.state, FAILED);
    for id in others {
        assert_eq!(ended(&stage.db, id).await.state, DONE);
    }
    assert_eq!(crashes.load(Ordering::Relaxed), 3, "the budget");
    let select = "select cause, losses from fencepost.dead_letter where id = $1";
    let row = stage.db.query_one(select, &[&poison]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), ("lost", 3));
    let select = "select node from fencepost.failure where id = $1";
    let nodes = stage.db.query(select, &[&poison]).await.unwrap();
    assert_eq!(nodes.len(), 3);
    for row in nodes {
        let node: &str = row.get(0);
        assert!(["n1", "n2", "n3"].contains(&node), "{node}");
    }
    supervisors.shutdown().await;
}

/// Waits for so many starts in a ledger.
async fn starts(path: &Path, number: usize) {
    eventually(PATIENCE, async || {
        let runs = ledger::read(path).unwrap_or_default();
        (runs.len() == number).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_and_its_replica_drain_together() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let brief: Vec<_> = MORTAL
        .iter()
        .copied()
        .chain([("REPLICA__DRAIN_TIMEOUT", "3s")])
        .collect();
    let mut first = Replica::start(&test.url(), &brief).await;
    let second = Replica::start(&test.url(), &brief).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let script = r#"case "$(cat)" in
        *short*) sleep 1 ;;
        *deaf*) trap "" TERM; sleep 60 ;;
        *) sleep 60 ;;
    esac"#;
    let connect = format!("{},{}", first.url(), second.url());
    let (ledger, three) = (path.to_str().unwrap(), ["--slots", "3"]);
    let more = [&three[..], &["--drain-timeout", "3s", "--ledger", ledger]].concat();
    let mut worker = worker_process(&connect, script, &more).spawn().unwrap();
    let mut ids = Vec::new();
    for kind in ["short", "long", "deaf"] {
        ids.push(enqueue(&db, &format!("'\"{kind}\"'")).await);
    }
    starts(&path, 3).await;
    let waiting = enqueue(&db, "'\"short\"'").await;

    let asked = Instant::now();
    first.signal(Signal::SIGTERM);
    terminate(&worker);
    assert_eq!(first.ended().await.code(), Some(0), "{}", first.log());
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    // A command that ignores SIGTERM gets 3 s more before it is killed.
    assert_eq!(exit_code(&mut worker).await, Some(0));
    assert!(
        asked.elapsed() < Duration::from_secs(8),
        "{:?}",
        asked.elapsed()
    );

    let end = ended(&db, ids[0]).await;
    assert_eq!((end.state, end.attempt), (DONE, 0));
    for id in &ids[1..] {
        let row = eventually(PATIENCE, async || {
            live(&db, *id).await.filter(|row| row.state == 0)
        })
        .await;
        // A new epoch: whatever the first delivery still says comes too late.
        assert_eq!((row.attempt, row.losses, row.epoch), (0, 0, 1));
        assert_eq!(failures(&db, *id).await, []);
    }
    assert_eq!(live(&db, waiting).await.unwrap().fence, 0, "no new work");
    let mut other = ScriptedWorker::connect_with_slots(&second.url(), 3).await;
    for task in take(&mut other, 3).await {
        assert_eq!(task.attempt, 1);
    }
}

#[tokio::test]
async fn a_second_signal_ends_a_worker_at_once() {
    let stage = Stage::set(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut command = worker_process(
        &stage.replica.url(),
        "sleep 60",
        &["--ledger", path.to_str().unwrap()],
    );
    let mut worker = command.stderr(Stdio::piped()).spawn().unwrap();
    enqueue(&stage.db, "").await;
    starts(&path, 1).await;
    terminate(&worker);
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines();
    let said = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("draining") {
                return;
            }
        }
        panic!("it ended without a word");
    };
    tokio::time::timeout(PATIENCE, said).await.unwrap();
    let asked = Instant::now();
    terminate(&worker);
    assert_eq!(exit_code(&mut worker).await, Some(130));
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );
}

/// Enqueues with the one key until told to stop; answers the tasks that were named, and how many of them are new.
async fn enqueue_the_key(
    db: tokio_postgres::Client,
    stop: Arc<AtomicU32>,
) -> (BTreeSet<i64>, usize) {
    let call = "select task_id, created from fencepost.enqueue('q', 't', dispatch_key => 'k')";
    let (mut named, mut created) = (BTreeSet::new(), 0);
    // All at once, and from then on at a pace that leaves the worker time to accept.
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    while stop.load(Ordering::Relaxed) == 0 {
        ticks.tick().await;
        let row = db.query_one(call, &[]).await.unwrap();
        named.insert(row.get(0));
        created += usize::from(row.get::<_, bool>(1));
    }
    (named, created)
}

#[tokio::test]
async fn of_many_who_enqueue_one_key_at_once_one_makes_the_task() {
    const CLIENTS: usize = 64;
    let test = TestDb::new().await;
    // So many clients may keep a small machine from everything else for longer than an acceptance may take.
    let env = [("WORKERS__ACCEPT_TIMEOUT", "60s")];
    let replica = Replica::start(&test.url(), &env).await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    let mut earlier = 0;
    for _ in 0..2 {
        let stop = Arc::new(AtomicU32::new(0));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(enqueue_the_key(test.connect().await, Arc::clone(&stop)));
        }
        // The holder of the key runs, waits for its retry, runs again and is done meanwhile.
        let first = worker.accept_next().await;
        worker.fail(&first, FailureKind::Retryable, "once").await;
        worker.recorded(&first).await;
        let task = worker.accept_next().await;
        assert_eq!((task.task_id, task.attempt), (first.task_id, 2));
        worker.succeed(&task, "1").await;
        worker.recorded(&task).await;
        stop.store(1, Ordering::Relaxed);
        let (mut named, mut created) = (BTreeSet::new(), 0);
        while let Some(client) = clients.join_next().await {
            let (some, new) = client.unwrap();
            named.extend(some);
            created += new;
        }
        assert_eq!((named, created), (BTreeSet::from([task.task_id]), 1));
        assert_ne!(task.task_id, earlier);
        earlier = task.task_id;
        // In the second round the key is one that nobody has to remember any more.
        let db = test.connect().await;
        db.batch_execute("update fencepost.dispatch_key set remember = '0'")
            .await
            .unwrap();
        let tasks = "select count(*) from fencepost.tasks where state <> 'done'";
        assert_eq!(count(&db, tasks).await, 0);
    }
}
