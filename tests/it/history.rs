//! The long run: replicas, workers and backends are killed at random under load, operators pause, resume, cancel and
//! redrive meanwhile, and a checker reads what was recorded.

mod checker;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fencepost::proto::worker::RefusedReason;
use fencepost::worker::{Failure, Options, Success, Task, Worker, ledger};
use nix::sys::signal::Signal;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::support::tasks::{CANCELLED, count};
use crate::support::{Replica, ScriptedWorker, TestDb, fencepost};
use checker::{End, Failed, History, check};

const TASKS: usize = 20_000;
const MAX_ATTEMPTS: i32 = 6;
const REPLICAS: usize = 3;
/// One more is unruly, and lives in this process.
const WORKERS: usize = 5;
/// Tasks that are enqueued at once, of which each twentieth has a label that a filter can name.
const BATCH: i32 = 400;
/// Addresses that cover all of them.
const PAUSES: [&str; 4] = [
    "everything => true",
    "task_queue => 'q'",
    "namespace => 'default', task_type => 't'",
    "namespace => 'default', task_queue => 'q', task_type => 't'",
];
/// The chaos ends with this time, or when so much is done.
const CHAOS: Duration = Duration::from_secs(35);
const CHAOS_SHARE: f64 = 0.8;
/// From then on everything ends by itself.
const CALM: Duration = Duration::from_secs(120);

/// A replica that answers no registration for so long has been killed meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

const SETTINGS: &[(&str, &str)] = &[
    ("REPLICA__BEAT", "300ms"),
    ("REPLICA__DEAD_AFTER", "2s"),
    ("WORKERS__RECONNECT_GRACE", "500ms"),
    ("WORKERS__ACCEPT_TIMEOUT", "2s"),
    ("TASKS__BACKOFF_BASE", "20ms"),
    ("TASKS__BACKOFF_MAX", "300ms"),
    ("TASKS__MAX_ATTEMPTS", "6"),
];

/// Run by the long test in processes of their own: a worker whose handlers fail, panic and snooze at random. It
/// stops when its stdin ends.
#[tokio::test]
#[ignore = "a worker of the_long_run_keeps_every_rule"]
async fn worker_process() {
    let options = Options {
        connect: std::env::var("HISTORY_CONNECT")
            .unwrap()
            .split(',')
            .map(str::to_owned)
            .collect(),
        task_queue: "q".into(),
        slots: 32,
        ledger: Some(std::env::var("HISTORY_LEDGER").unwrap().into()),
        ..Options::default()
    };
    let worker = Worker::new(options).handle("t", async |_: Task| {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..30))).await;
        match fastrand::u32(0..100) {
            0..6 => Err(Failure::retryable("odd", "as it happens")),
            6 => Err(Failure::terminal("hopeless", "as it happens")),
            7 => panic!("as it happens"),
            8..11 => Err(Failure::Snooze {
                after: Duration::from_millis(fastrand::u64(0..200)),
            }),
            _ => Ok(Success::json(1)),
        }
    });
    let stop = async {
        // Whatever is read: the end is what counts.
        tokio::io::stdin().read_to_end(&mut Vec::new()).await.ok();
    };
    worker.run(stop).await.unwrap();
}

struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Its first dispatcher is the one at `first`.
    fn start(urls: &[String], first: usize, ledger: &Path) -> Self {
        let mut urls = urls.to_vec();
        urls.rotate_left(first % REPLICAS);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "history::worker_process", "--ignored"])
            .env("HISTORY_CONNECT", urls.join(","))
            .env("HISTORY_LEDGER", ledger)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        Self { child, stdin }
    }

    async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Lets it drain.
    async fn stop(mut self) {
        drop(self.stdin.take());
        let ended = tokio::time::timeout(Duration::from_secs(40), self.child.wait()).await;
        assert!(ended.expect("the worker drains").unwrap().success());
    }
}

/// A worker that refuses, says nothing, or goes away with what it has accepted; it never reports.
async fn be_unruly(urls: Vec<String>) {
    loop {
        let url = &urls[fastrand::usize(..urls.len())];
        let wide = fencepost::proto::worker::Register {
            slots: 8,
            ..crate::support::scripted_worker::register()
        };
        // A replica may be down just now, or not registered yet.
        let Ok(Ok(mut worker)) =
            tokio::time::timeout(PATIENCE, ScriptedWorker::register(url, wide)).await
        else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        for _ in 0..fastrand::usize(1..40) {
            let Some(task) = worker.next_task().await else {
                break;
            };
            match fastrand::u32(0..10) {
                0 => worker.accept(&[&task]).await,
                1 => {}
                2 => worker.refuse(&task, RefusedReason::Draining).await,
                3 => worker.refuse(&task, RefusedReason::UnknownType).await,
                _ => worker.refuse(&task, RefusedReason::NoSlot).await,
            }
        }
    }
}

/// All that is there to be killed.
struct Scene {
    test: TestDb,
    db: Client,
    replicas: Vec<Replica>,
    frozen: Option<usize>,
    urls: Vec<String>,
    workers: Vec<Process>,
    directory: tempfile::TempDir,
    ledgers: Vec<PathBuf>,
    enqueued: Vec<i64>,
    /// Labelled tasks of each batch.
    doomed: Vec<Vec<i64>>,
    asked: BTreeSet<i64>,
    paused: Option<&'static str>,
}

impl Scene {
    async fn set() -> Self {
        let test = TestDb::new().await;
        let db = test.connect().await;
        let mut replicas = Vec::new();
        for _ in 0..REPLICAS {
            replicas.push(Replica::start(&test.url(), SETTINGS).await);
        }
        let urls = replicas.iter().map(Replica::url).collect();
        let mut scene = Self {
            test,
            db,
            replicas,
            frozen: None,
            urls,
            workers: Vec::new(),
            directory: tempfile::tempdir().unwrap(),
            ledgers: Vec::new(),
            enqueued: Vec::with_capacity(TASKS),
            doomed: Vec::new(),
            asked: BTreeSet::new(),
            paused: None,
        };
        for first in 0..WORKERS {
            let worker = scene.new_worker(first);
            scene.workers.push(worker);
        }
        scene
    }

    fn new_worker(&mut self, first: usize) -> Process {
        let ledger = self.directory.path().join(self.ledgers.len().to_string());
        let process = Process::start(&self.urls, first, &ledger);
        self.ledgers.push(ledger);
        process
    }

    async fn kill_a_worker(&mut self) {
        let victim = fastrand::usize(..WORKERS);
        self.workers[victim].kill().await;
        self.workers[victim] = self.new_worker(victim);
    }

    async fn kill_a_replica(&mut self) {
        let victim = &mut self.replicas[fastrand::usize(..REPLICAS)];
        victim.kill().await;
        *victim = Replica::spawn_at(&self.test.url(), SETTINGS, victim.grpc()).await;
    }

    fn freeze_another_replica(&mut self) {
        self.thaw();
        let victim = fastrand::usize(..REPLICAS);
        self.replicas[victim].signal(Signal::SIGSTOP);
        self.frozen = Some(victim);
    }

    /// It may be another process by now, which does not mind.
    fn thaw(&mut self) {
        if let Some(victim) = self.frozen.take() {
            self.replicas[victim].signal(Signal::SIGCONT);
        }
    }

    async fn kill_backends(&self) {
        let strike = "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid() order by random() limit 2";
        self.db.query(strike, &[]).await.unwrap();
    }

    async fn enqueue(&mut self) {
        let call = "select task_id from fencepost.enqueue_many(
            array['q'], array['t'], array_fill('null'::bytea, array[$1::int]),
            labels => array(
                select case when n % 20 = 0 then jsonb_build_object('doomed', $2::text) else '{}' end
                from generate_series(1, $1) as n
            )
        )";
        let batch = self.doomed.len().to_string();
        let rows = self.db.query(call, &[&BATCH, &batch]).await.unwrap();
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        self.doomed
            .push(ids.iter().skip(19).step_by(20).copied().collect());
        self.enqueued.extend(ids);
    }

    /// Cancels the labelled tasks of one of the last batches, whatever they are at. The command may lose its connection:
    /// then it did a part, or nothing. True: it came to its end.
    async fn cancel_some(&mut self) -> bool {
        let newest = self.doomed.len() - 1;
        let batch = newest - fastrand::usize(..=newest.min(3));
        self.asked.extend(&self.doomed[batch]);
        let label = format!("doomed={batch}");
        let command = ["task", "cancel", "--label", &label];
        fencepost(&self.test.url(), &command).await.status.success()
    }

    /// Redrives all that is dead by then. The command may lose its connection, whether or not it has begun. True: it has.
    async fn redrive(&self) -> bool {
        let command = ["dead-letter", "redrive", "--all"];
        fencepost(&self.test.url(), &command).await.status.success()
    }

    /// What redrives have made joins the list of what was enqueued, and of what was to be cancelled where that holds
    /// for the first of its line: labels are handed on. Answers how many that are.
    async fn take_in_redriven(&mut self) -> usize {
        let made = "select task.id, task.origin from fencepost.task
            inner join fencepost.dead_letter on dead_letter.redriven_as = task.id";
        let made = self.db.query(made, &[]).await.unwrap();
        for row in &made {
            let (id, origin): (i64, i64) = (row.get(0), row.get(1));
            self.enqueued.push(id);
            if self.asked.contains(&origin) {
                self.asked.insert(id);
            }
        }
        made.len()
    }

    /// Whether nothing is left to do.
    async fn is_over(&self) -> bool {
        let left = "select (select count(*) from fencepost.live)
            + (select count(*) from fencepost.redrive where state = 'running')";
        count(&self.db, left).await == 0
    }

    async fn pause(&mut self) {
        self.resume().await;
        let what = PAUSES[fastrand::usize(..PAUSES.len())];
        let call = format!("select fencepost.pause({what})");
        self.db.batch_execute(&call).await.unwrap();
        self.paused = Some(what);
    }

    async fn resume(&mut self) {
        if let Some(what) = self.paused.take() {
            let call = format!("select fencepost.resume({what})");
            self.db.batch_execute(&call).await.unwrap();
        }
    }

    async fn ended(&self) -> usize {
        usize::try_from(count(&self.db, "select count(*) from fencepost.outcome").await).unwrap()
    }

    /// What was recorded, by the tables and by the workers themselves.
    async fn history(&self) -> History {
        let all = async |select| self.db.query(select, &[]).await.unwrap();
        let ends = all("select id, state, attempt, epoch, fence from fencepost.outcome").await;
        let failures = all("select id, attempt, fence, move from fencepost.failure").await;
        let ids = async |select| all(select).await.iter().map(|row| row.get(0)).collect();
        let runs = self
            .ledgers
            .iter()
            .flat_map(|ledger| ledger::read(ledger).unwrap_or_default());
        History {
            enqueued: self.enqueued.clone(),
            asked: self.asked.clone(),
            max_attempts: MAX_ATTEMPTS,
            live: ids("select id from fencepost.live").await,
            ends: ends
                .iter()
                .map(|row| End {
                    id: row.get(0),
                    state: row.get(1),
                    attempt: row.get(2),
                    epoch: row.get(3),
                    fence: row.get(4),
                })
                .collect(),
            failures: failures
                .iter()
                .map(|row| Failed {
                    id: row.get(0),
                    attempt: row.get(1),
                    fence: row.get(2),
                    how: row.get(3),
                })
                .collect(),
            dead: ids("select id from fencepost.dead_letter").await,
            runs: runs.collect(),
        }
    }

    /// What stands where it stands, for the message of a run that does not end.
    async fn stuck(&self) -> String {
        let select = "select live::text from fencepost.live order by id limit 10";
        let rows = self.db.query(select, &[]).await.unwrap();
        rows.iter()
            .map(|row| row.get::<_, String>(0) + "\n")
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_long_run_keeps_every_rule() {
    let seed = std::env::var("HISTORY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    fastrand::seed(seed);
    println!("HISTORY_SEED={seed}");
    let mut scene = Scene::set().await;
    let mut unruly = JoinSet::new();
    unruly.spawn(be_unruly(scene.urls.clone()));

    let start = Instant::now();
    let (mut workers, mut replicas, mut turn) = (0, 0, 0);
    let (mut pauses, mut cancels, mut redrives) = (0, 0, 0);
    let mut strikes = tokio::time::interval(Duration::from_millis(350));
    strikes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while start.elapsed() < CHAOS && (scene.ended().await as f64) < CHAOS_SHARE * TASKS as f64 {
        strikes.tick().await;
        if scene.enqueued.len() < TASKS {
            scene.enqueue().await;
        }
        turn += 1;
        match turn % 4 {
            1 => cancels += usize::from(scene.cancel_some().await),
            2 => {
                scene.pause().await;
                pauses += 1;
            }
            3 => redrives += usize::from(scene.redrive().await),
            _ => scene.resume().await,
        }
        match turn % 8 {
            0 => {
                scene.kill_a_replica().await;
                replicas += 1;
            }
            3 | 6 => {
                scene.kill_a_worker().await;
                workers += 1;
            }
            // For longer than the death time.
            4 => scene.freeze_another_replica(),
            _ => scene.kill_backends().await,
        }
    }
    scene.thaw();
    scene.resume().await;
    while scene.enqueued.len() < TASKS {
        scene.enqueue().await;
    }
    unruly.shutdown().await;
    let calm = Instant::now();
    while !scene.is_over().await {
        assert!(
            calm.elapsed() < CALM,
            "unfinished:\n{}",
            scene.stuck().await
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("chaos {:?}, calm {:?}", calm - start, calm.elapsed());
    for worker in std::mem::take(&mut scene.workers) {
        worker.stop().await;
    }

    let redriven = scene.take_in_redriven().await;
    let history = scene.history().await;
    let cancelled = history.ends.iter().filter(|end| end.state == CANCELLED);
    let cancelled = cancelled.count();
    println!(
        "{} tasks, {cancelled} of them cancelled, {} starts, {} failures, {} dead letters; {workers} workers and {replicas} replicas killed, {pauses} pauses, {cancels} filters, {redrives} redrives of {redriven} letters",
        history.ends.len(),
        history.runs.len(),
        history.failures.len(),
        history.dead.len(),
    );
    assert_eq!(history.ends.len(), TASKS + redriven);
    assert!(
        workers >= 4 && replicas >= 2,
        "too calm a run: {workers} workers, {replicas} replicas killed"
    );
    assert!(
        pauses >= 3 && cancels >= 2 && cancelled > 0 && redrives >= 2 && redriven > 0,
        "too calm a run: {pauses} pauses, {cancels} filters, {cancelled} cancelled, {redrives} redrives of {redriven}"
    );
    let broken = check(&history);
    for (rule, task) in &broken {
        let rows = |what: &dyn std::fmt::Debug| eprintln!("{rule:?}: {what:?}");
        history
            .ends
            .iter()
            .filter(|end| end.id == *task)
            .for_each(|end| rows(end));
        history
            .failures
            .iter()
            .filter(|failed| failed.id == *task)
            .for_each(|failed| rows(failed));
        history
            .runs
            .iter()
            .filter(|run| run.task_id == *task)
            .for_each(|run| rows(run));
    }
    assert!(broken.is_empty(), "{broken:?}");
}
