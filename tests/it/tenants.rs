//! Many tenants: quotas over all replicas, fairness between namespaces, ageing between priorities.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::domain::id::{DispatcherId, NamespaceId};
use fencepost::domain::quota::Limited;
use fencepost::domain::settlement::Move;
use fencepost::proto::worker::Register;
use fencepost::store::claim::{ClaimRequest, LaneRequest, claim_within};
use fencepost::store::quotas::{self, Ask};
use fencepost::store::settle::{self, Completion, Return};
use fencepost::store::{Client, upkeep};
use fencepost::worker::{Options, Success, Worker};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::lifecycle::Stage;
use crate::support::queue::{DEADLINES, MAX_LOSSES, assert_sound, failure, success};
use crate::support::scripted_worker::register;
use crate::support::tasks::{count, enqueue};
use crate::support::{Operator, Queue, Replica, ScriptedWorker, TestDb, eventually, fencepost};

const PATIENCE: Duration = Duration::from_secs(60);

/// So many tasks of a tenant, in one statement and without a payload worth mentioning.
async fn enqueue_for(db: &tokio_postgres::Client, namespace: &str, tasks: i32, priority: i32) {
    let call = "select count(*) from fencepost.enqueue_many(
            task_queue => array['q'], task_type => array['t'], namespace => array[$1::text],
            priority => array[$3::int], payload => array_fill('null'::bytea, array[$2::int]))";
    db.query_one(call, &[&namespace, &tasks, &priority])
        .await
        .unwrap();
}

/// What is claimed of a tenant, as one snapshot has it.
async fn claimed(db: &tokio_postgres::Client, namespace: &str) -> i64 {
    let query = "select count(*) from fencepost.live
        inner join fencepost.route on route.route_id = live.route_id
        inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
        where live.state = 1 and namespace.name = $1";
    let row = db.query_one(query, &[&namespace]).await.unwrap();
    row.get(0)
}

/// A lane under the quotas of its namespace or route.
fn limited(namespace: NamespaceId, limit: i32) -> LaneRequest {
    LaneRequest {
        namespace,
        limited: true,
        ..Queue::lane(1, limit)
    }
}

fn under(queue: &Queue, lane: LaneRequest, quotas: &[Limited]) -> ClaimRequest {
    ClaimRequest {
        quotas: quotas.iter().map(|of| Ask::anew(*of)).collect(),
        ..queue.request(vec![lane], vec![lane.limit])
    }
}

async fn set_quota(db: &Client, max_in_flight: i32) {
    let call =
        format!("select fencepost.set_namespace('default', max_in_flight => {max_in_flight})");
    db.batch_execute(&call).await.unwrap();
}

#[tokio::test]
async fn a_quota_binds_the_next_claim_whatever_the_replica_knows() {
    let queue = Queue::new().await;
    queue.enqueue(100).await;
    let mut client = queue.client().await;
    set_quota(&client, 3).await;
    let ours = [Limited::Namespace(1)];

    // A replica that has not heard of it.
    let request = queue.request(vec![Queue::lane(1, 10)], vec![10]);
    let (_, got) = claim_within(&mut client, queue.dispatcher, request, DEADLINES)
        .await
        .unwrap();
    assert_eq!(got.claims.len(), 0);

    let claim = async |client: &mut Client, limit| {
        let request = under(&queue, limited(1, limit), &ours);
        let (_, got) = claim_within(client, queue.dispatcher, request, DEADLINES)
            .await
            .unwrap();
        got
    };
    let got = claim(&mut client, 10).await;
    assert_eq!((got.claims.len(), got.usages[0].claimed), (3, 0));
    let more = claim(&mut client, 10).await;
    assert_eq!((more.claims.len(), more.usages[0].left()), (0, Some(0)));
    set_quota(&client, 5).await;
    assert_eq!(claim(&mut client, 10).await.claims.len(), 2);
    set_quota(&client, 4).await;
    settle::complete(&client, &[success(got.claims[0].token)])
        .await
        .unwrap();
    assert_eq!(
        claim(&mut client, 10).await.claims.len(),
        0,
        "one too many still"
    );
    settle::complete(&client, &[success(got.claims[1].token)])
        .await
        .unwrap();
    assert_eq!(claim(&mut client, 10).await.claims.len(), 1);
    set_quota(&client, 0).await;
    assert_eq!(claim(&mut client, 10).await.claims.len(), 0);
    set_quota(&client, -1).await;
    assert_eq!(claim(&mut client, 10).await.claims.len(), 10);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_quota_of_a_route_counts_beside_that_of_its_namespace() {
    let queue = Queue::new().await;
    queue.enqueue(50).await;
    let mut client = queue.client().await;
    set_quota(&client, 5).await;
    client
        .batch_execute("select fencepost.declare_queue('q', 't', max_in_flight => 2)")
        .await
        .unwrap();
    let both = [Limited::Namespace(1), Limited::Route(1)];
    for (quotas, taken) in [
        (&both[..1], 0),
        (&both[1..], 0),
        (&both[..], 2),
        (&both[..], 0),
    ] {
        let request = under(&queue, limited(1, 10), quotas);
        let (_, got) = claim_within(&mut client, queue.dispatcher, request, DEADLINES)
            .await
            .unwrap();
        assert_eq!(got.claims.len(), taken, "{quotas:?}");
    }
}

#[tokio::test]
async fn a_quota_in_other_hands_is_left_alone_and_stops_no_stranger() {
    let queue = Queue::new().await;
    queue.enqueue(10).await;
    for _ in 0..2 {
        queue.enqueue_with("namespace => 'other'").await;
    }
    let (mut holder, mut client) = (queue.client().await, queue.client().await);
    set_quota(&holder, 5).await;
    let ours = [Limited::Namespace(1)];
    let transaction = holder.transaction().await.unwrap();
    let held = quotas::lock(&transaction, &[Ask::anew(ours[0])]).await;
    assert_eq!(held.unwrap(), ours);

    let stranger = LaneRequest {
        route: 2,
        namespace: 2,
        ..Queue::lane(1, 1)
    };
    let request = |awaited| ClaimRequest {
        quotas: vec![Ask::anew(ours[0])],
        awaited,
        ..queue.request(vec![limited(1, 10), stranger], vec![10])
    };
    let short = Some((ours[0], Duration::from_millis(50)));
    for awaited in [short, None] {
        let request = request(awaited);
        let (asked, got) = claim_within(&mut client, queue.dispatcher, request, DEADLINES)
            .await
            .unwrap();
        assert_eq!((got.claims.len(), &got.lost[..]), (1, &ours[..]));
        assert_eq!(
            asked.lanes.len(),
            1,
            "the lane in other hands was not asked"
        );
    }
    // Who waits has it as soon as it is let go.
    let long = Some((ours[0], Duration::from_mins(1)));
    let waits = claim_within(&mut client, queue.dispatcher, request(long), DEADLINES);
    let lets_go = async {
        let waiting = "select from pg_locks join pg_database on pg_database.oid = pg_locks.database
            where datname = current_database() and locktype = 'advisory' and not granted";
        eventually(Duration::from_secs(10), async || {
            let rows = transaction.query(waiting, &[]).await.unwrap();
            (!rows.is_empty()).then_some(())
        })
        .await;
        transaction.commit().await.unwrap();
    };
    let (got, ()) = tokio::join!(waits, lets_go);
    let (_, got) = got.unwrap();
    assert_eq!(got.claims.len(), 5);
}

/// What all replicas of the race share.
struct Race {
    queue: Queue,
    quota: i64,
    /// Claimed by answers that have arrived, minus ended by calls that have begun: never more than is claimed.
    running: AtomicI64,
    most: AtomicI64,
    ended: AtomicUsize,
}

/// One replica: it claims, ends some of what it has, and dies now and then, leaving what it has to whoever clears up.
async fn race(race: Arc<Race>, name: usize, tasks: usize) {
    let mut client = race.queue.client().await;
    let mut dispatcher: DispatcherId = race.queue.join(&format!("r{name}")).await;
    let mut held = Vec::new();
    while race.ended.load(Ordering::SeqCst) < tasks {
        let request = under(&race.queue, limited(1, 200), &[Limited::Namespace(1)]);
        let (_, got) = claim_within(&mut client, dispatcher, request, DEADLINES)
            .await
            .unwrap();
        let more = i64::try_from(got.claims.len()).unwrap();
        let running = race.running.fetch_add(more, Ordering::SeqCst) + more;
        race.most.fetch_max(running, Ordering::SeqCst);
        held.extend(got.claims.iter().map(|claim| claim.token));
        if fastrand::u8(..) < 12 {
            race.queue.kill(dispatcher).await;
            let lost = i64::try_from(held.len()).unwrap();
            race.running.fetch_sub(lost, Ordering::SeqCst);
            held.clear();
            clear_up(&client).await;
            dispatcher = race.queue.join(&format!("r{name}")).await;
        }
        let some = held.split_off(held.len() / 3);
        let batch: Vec<_> = some.iter().copied().map(success).collect();
        race.running
            .fetch_sub(i64::try_from(batch.len()).unwrap(), Ordering::SeqCst);
        race.ended.fetch_add(batch.len(), Ordering::SeqCst);
        let all_end = end(&client, batch);
        tokio::time::timeout(PATIENCE, all_end)
            .await
            .expect("nothing is superseded");
    }
    // What is left is nobody's after this.
    race.running
        .fetch_sub(i64::try_from(held.len()).unwrap(), Ordering::SeqCst);
}

/// Ends them all: a row that is locked for a moment, by whoever looks whether it is still a dead one's, is left out.
async fn end(client: &Client, mut batch: Vec<Completion>) {
    while !batch.is_empty() {
        let done = settle::complete(client, &batch).await.unwrap();
        batch.retain(|entry| done.iter().all(|one| one.id != entry.token.id));
    }
}

async fn clear_up(client: &Client) {
    let orphans = upkeep::find_orphans(client, 500).await.unwrap();
    let returns: Vec<Return> = orphans
        .iter()
        .map(|orphan| Return {
            owner: Some(orphan.owner),
            ..failure(orphan.token, Move::Release)
        })
        .collect();
    settle::give_back(client, &returns, MAX_LOSSES)
        .await
        .unwrap();
}

async fn run_race(quota: i64, tasks: usize) {
    let queue = Queue::new().await;
    queue.enqueue(i32::try_from(tasks).unwrap() + 400).await;
    set_quota(&queue.client().await, i32::try_from(quota).unwrap()).await;
    let shared = Arc::new(Race {
        queue,
        quota,
        running: AtomicI64::new(0),
        most: AtomicI64::new(0),
        ended: AtomicUsize::new(0),
    });
    let over = Arc::new(AtomicBool::new(false));
    let mut replicas = JoinSet::new();
    for name in 0..4 {
        replicas.spawn(race(Arc::clone(&shared), name, tasks));
    }
    let mut sampler = JoinSet::new();
    sampler.spawn({
        let (shared, over) = (Arc::clone(&shared), Arc::clone(&over));
        async move {
            let client = shared.queue.client().await;
            let mut most = 0;
            while !over.load(Ordering::SeqCst) {
                let query = "select count(*) from fencepost.live where state = 1";
                let seen: i64 = client.query_one(query, &[]).await.unwrap().get(0);
                most = seen.max(most);
            }
            most
        }
    });
    while let Some(ended) = replicas.join_next().await {
        ended.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    let sampled = sampler.join_next().await.unwrap().unwrap();
    let most = shared.most.load(Ordering::SeqCst);
    assert!(
        sampled <= shared.quota,
        "{sampled} of {quota} seen in the tables"
    );
    assert!(
        most <= shared.quota,
        "{most} of {quota} by the answers to claims"
    );
    assert_eq!(sampled.max(most), quota, "the quota was used");
    shared.queue.assert_sound().await;
}

#[tokio::test]
async fn four_replicas_and_random_deaths_never_exceed_a_quota() {
    for (quota, tasks) in [(1, 150), (7, 500), (100, 2_000)] {
        run_race(quota, tasks).await;
    }
}

/// Workers of this process, and which tenants' tasks they have started, in order.
pub struct Crowd {
    started: Arc<Mutex<Vec<(String, i32)>>>,
    changed: Arc<Notify>,
    /// Running now and at most, by tenant.
    running: Arc<Mutex<BTreeMap<String, (i32, i32)>>>,
    stop: CancellationToken,
    workers: JoinSet<()>,
}

impl Crowd {
    pub fn new() -> Self {
        Self {
            started: Arc::default(),
            changed: Arc::default(),
            running: Arc::default(),
            stop: CancellationToken::new(),
            workers: JoinSet::new(),
        }
    }

    /// A worker for all tenants whose tasks last so long.
    pub fn hire(&mut self, connect: Vec<String>, slots: u32, lasts: Duration) {
        let (started, changed, running) = (
            Arc::clone(&self.started),
            Arc::clone(&self.changed),
            Arc::clone(&self.running),
        );
        let worker = Worker::new(Options {
            connect,
            identity: format!("crowd-{}", self.workers.len()),
            namespaces: vec!["*".into()],
            task_queue: "q".into(),
            slots,
            drain_timeout: Duration::from_secs(2),
            ..Options::default()
        });
        let worker = worker.handle("t", move |task| {
            let (started, changed, running) = (
                Arc::clone(&started),
                Arc::clone(&changed),
                Arc::clone(&running),
            );
            async move {
                let tenant = task.namespace().to_owned();
                let priority: i32 = std::str::from_utf8(task.payload())
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(-1);
                {
                    let mut running = running.lock();
                    let (now, most) = running.entry(tenant.clone()).or_default();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                started.lock().push((tenant.clone(), priority));
                changed.notify_waiters();
                tokio::time::sleep(lasts).await;
                if let Some((now, _)) = running.lock().get_mut(&tenant) {
                    *now -= 1;
                }
                Ok(Success::json(json!(null)))
            }
        });
        let stop = self.stop.clone();
        self.workers.spawn(async move {
            worker.run(stop.cancelled_owned()).await.unwrap();
        });
    }

    pub fn starts(&self) -> Vec<(String, i32)> {
        self.started.lock().clone()
    }

    /// Waits until the list of starts is liked.
    pub async fn until<T>(&self, what: impl Fn(&[(String, i32)]) -> Option<T>) -> T {
        let waited = async {
            loop {
                let news = self.changed.notified();
                let found = what(&self.started.lock());
                if let Some(found) = found {
                    return found;
                }
                let _later = tokio::time::timeout(Duration::from_millis(200), news).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, waited).await;
        found.unwrap_or_else(|_| {
            panic!("{} starts, and not what is waited for", self.starts().len())
        })
    }

    pub async fn dismiss(mut self) {
        self.stop.cancel();
        while self.workers.join_next().await.is_some() {}
    }
}

/// Where in the list a tenant first stands.
fn first_of(starts: &[(String, i32)], tenant: &str) -> Option<usize> {
    starts.iter().position(|(one, _)| one == tenant)
}

#[tokio::test]
async fn a_noisy_neighbour_leaves_the_others_their_share() {
    const SLOTS: usize = 20;
    let stage = Stage::set(&[]).await;
    let mut crowd = Crowd::new();
    enqueue_for(&stage.db, "a", 20_000, 1).await;
    crowd.hire(vec![stage.replica.url()], 20, Duration::from_millis(50));
    // Only a is there, and it has everything.
    crowd
        .until(|starts| (starts.len() > 200).then_some(()))
        .await;
    let before = crowd.starts().len();
    enqueue_for(&stage.db, "c", 1, 1).await;
    enqueue_for(&stage.db, "b", 400, 1).await;
    let seen = crowd.starts().len();
    let first = crowd
        .until(|starts| Some((first_of(starts, "b")?, first_of(starts, "c")?)))
        .await;
    // A run or two of all slots, and the time until a busy replica looks for tenants that it knows nothing of, which grows
    // with the load on this machine; far from the backlog of 20,000 in any case.
    for place in [first.0, first.1] {
        assert!(
            place >= before && place - seen.min(place) <= 50 * SLOTS,
            "{first:?} from {before} or {seen} on"
        );
    }
    let shares = crowd
        .until(|starts| {
            let since = &starts[first.0..];
            let of = |tenant: &str| since.iter().filter(|(one, _)| one == tenant).count();
            (since.len() >= 400).then(|| (of("a"), of("b")))
        })
        .await;
    let (a, b) = shares;
    assert!(a.abs_diff(b) <= (a + b) / 10, "{shares:?} of equal weights");
    crowd.dismiss().await;
}

#[tokio::test]
async fn a_quiet_tenant_beside_a_huge_backlog_is_next() {
    let stage = Stage::set(&[]).await;
    enqueue_for(&stage.db, "noisy", 1, 1).await;
    // A backlog as it lies in the tables; 200,000 rows, without the time that their checks take.
    stage
        .db
        .batch_execute(
            "with made as (
                insert into fencepost.live (id, route_id, priority, visible_after)
                select (select max(id) from fencepost.live) + n, 1, 1, now() from generate_series(1, 200000) as n
                returning id
            )
            insert into fencepost.task (id, origin, enqueued_at, route_id, content_type, payload)
            select id, id, now(), 1, 'application/json', 'null' from made",
        )
        .await
        .unwrap();
    enqueue_for(&stage.db, "quiet", 1, 1).await;
    let register = Register {
        namespaces: vec!["*".into()],
        slots: 4,
        ..register()
    };
    let mut worker = ScriptedWorker::connect_as(&stage.replica.url(), register).await;
    let mut tenants = Vec::new();
    for _ in 0..4 {
        tenants.push(worker.accept_next().await.namespace);
    }
    // The first sweep gave one of the four slots' halves to each; what the quiet one left is handed on.
    tenants.sort();
    assert_eq!(tenants, ["noisy", "noisy", "noisy", "quiet"]);
}

#[tokio::test]
async fn low_priority_is_not_for_ever_unless_ageing_is_off() {
    for (step, off) in [("300ms", false), ("0s", true)] {
        let stage = Stage::set(&[("DISPATCH__AGEING_STEP", step)]).await;
        let mut crowd = Crowd::new();
        let flow = async |tasks: i32| {
            let call = "select count(*) from fencepost.enqueue_many(
                    task_queue => array['q'], task_type => array['t'], priority => array[0],
                    payload => array_fill('0'::bytea, array[$1::int]))";
            stage.db.query_one(call, &[&tasks]).await.unwrap();
        };
        flow(1_000).await;
        for _ in 0..50 {
            enqueue(&stage.db, "'3', priority => 3").await;
        }
        crowd.hire(vec![stage.replica.url()], 4, Duration::from_millis(5));
        // More urgent work comes faster than it is done, until all have started or many have passed by.
        let low = |starts: &[(String, i32)]| starts.iter().filter(|(_, p)| *p == 3).count();
        let enough = async {
            loop {
                let starts = crowd.starts();
                if low(&starts) == 50 || (off && starts.len() >= 1_500) {
                    return starts;
                }
                let ready = count(
                    &stage.db,
                    "select count(*) from fencepost.live where priority = 0",
                )
                .await;
                if ready < 1_000 {
                    flow(500).await;
                }
                let _news =
                    tokio::time::timeout(Duration::from_millis(20), crowd.changed.notified()).await;
            }
        };
        let starts = tokio::time::timeout(PATIENCE, enough).await.unwrap();
        assert_eq!(low(&starts), if off { 0 } else { 50 });
        crowd.dismiss().await;
    }
}

#[tokio::test]
async fn dead_holders_do_not_hold_a_quota() {
    let stage = Stage::set(&[]).await;
    fencepost_says(
        &stage,
        &["namespace", "set", "default", "--max-in-flight", "1"],
    )
    .await;
    let (first, second) = (enqueue(&stage.db, "").await, enqueue(&stage.db, "").await);
    let operator = Operator::of(&stage.replica);
    let mut doomed = stage.wide_worker(4).await;
    let task = doomed.accept_next().await;
    assert_eq!(task.task_id, first);
    let why = operator.stands(second, "quota_used_up").await;
    assert!(
        why["detail"].as_str().unwrap().contains("1 of 1 used"),
        "{why}"
    );
    let quota = why["gates"]
        .as_array()
        .unwrap()
        .iter()
        .find(|gate| gate["gate"] == "quota");
    assert_eq!(quota.unwrap()["passed"], false);
    let mut heir = stage.wide_worker(4).await;
    drop(doomed);
    let task = heir.accept_next().await;
    assert_eq!(claimed(&stage.db, "default").await, 1);
    heir.succeed(&task, "1").await;
    heir.recorded(&task).await;
    let next = heir.accept_next().await;
    assert_ne!(next.task_id, task.task_id);
    assert_eq!(claimed(&stage.db, "default").await, 1);
    // Lifted, it binds nobody any more.
    for _ in 0..3 {
        enqueue(&stage.db, "").await;
    }
    fencepost_says(
        &stage,
        &["namespace", "set", "default", "--max-in-flight", "none"],
    )
    .await;
    for _ in 0..3 {
        heir.accept_next().await;
    }
    stage.assert_sound().await;
}

async fn fencepost_says(stage: &Stage, arguments: &[&str]) {
    let output = fencepost(&stage.url(), arguments).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

#[tokio::test]
async fn quotas_hold_over_real_replicas_of_which_one_is_killed() {
    const QUOTAS: [(&str, i32); 3] = [("one", 1), ("seven", 7), ("hundred", 100)];
    let test = TestDb::new().await;
    let env = [("REPLICA__BEAT", "500ms"), ("REPLICA__DEAD_AFTER", "8s")];
    let mut replicas = Vec::new();
    for _ in 0..4 {
        replicas.push(Replica::start(&test.url(), &env).await);
    }
    let db = test.connect().await;
    for (tenant, quota) in QUOTAS {
        let set = format!("select fencepost.set_namespace('{tenant}', max_in_flight => {quota})");
        db.batch_execute(&set).await.unwrap();
        enqueue_for(&db, tenant, quota.max(6) * 8, 1).await;
    }
    let mut crowd = Crowd::new();
    for one in 0..4 {
        let mut urls: Vec<String> = replicas.iter().map(Replica::url).collect();
        urls.rotate_left(one);
        crowd.hire(urls, 60, Duration::from_millis(100));
    }
    let mut most: BTreeMap<&str, i64> = BTreeMap::new();
    let all: i64 = QUOTAS
        .iter()
        .map(|(_, quota)| i64::from(*quota).max(6) * 8)
        .sum();
    let watch = async {
        let mut killed = false;
        loop {
            for (tenant, _) in QUOTAS {
                let seen = claimed(&db, tenant).await;
                let most = most.entry(tenant).or_default();
                *most = seen.max(*most);
            }
            let ended = count(&db, "select count(*) from fencepost.outcome").await;
            if !killed && ended > 50 {
                killed = true;
                replicas[0].kill().await;
            }
            if ended == all {
                assert!(killed);
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE * 2, watch).await.unwrap();
    for (tenant, quota) in QUOTAS {
        assert!(most[tenant] <= i64::from(quota), "{most:?}");
        let running = crowd.running.lock()[tenant].1;
        assert!(
            running <= quota,
            "{running} of {tenant} ran at the same time"
        );
    }
    assert!(most["hundred"] > 50, "{most:?}");
    crowd.dismiss().await;
    assert_sound(&test.pool().get().await.unwrap()).await;
}

#[tokio::test]
async fn every_door_sets_quotas_and_weights_and_refuses_the_same() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    let body = r#"{"weight": 3, "max_in_flight": 40}"#;
    let namespace = operator.change("PUT", "/v1/namespaces/t1", body).await;
    assert_eq!(
        (&namespace["weight"], &namespace["max_in_flight"]),
        (&json!(3), &json!(40))
    );
    let namespace = operator
        .change("PUT", "/v1/namespaces/t1", r#"{"max_in_flight": "none"}"#)
        .await;
    assert_eq!(
        (&namespace["weight"], &namespace["max_in_flight"]),
        (&json!(3), &json!(null))
    );
    for (body, code, field) in [
        (r#"{"weight": 0}"#, "FP-060", "weight"),
        (r#"{"weight": 1001}"#, "FP-060", "weight"),
        (r#"{"max_in_flight": -1}"#, "FP-061", "max_in_flight"),
        (r#"{"max_in_flight": -7}"#, "FP-061", "max_in_flight"),
        (r#"{"max_in_flight": "many"}"#, "FP-103", "max_in_flight"),
    ] {
        let (status, problem) = operator.call("PUT", "/v1/namespaces/t1", body).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &json!(code), &json!(field)),
            "{body}"
        );
    }
    let refused = stage
        .db
        .batch_execute("select fencepost.set_namespace('t1', max_in_flight => -2)")
        .await;
    assert_eq!(refused.unwrap_err().code().unwrap().code(), "FP061");
    let output = fencepost(
        &stage.url(),
        &["namespace", "set", "t1", "--max-in-flight", "-3"],
    )
    .await;
    assert_eq!(output.status.code(), Some(2));

    fencepost_says(
        &stage,
        &[
            "queue",
            "declare",
            "--queue",
            "q",
            "--type",
            "t",
            "--max-in-flight",
            "9",
        ],
    )
    .await;
    let of_queue = async || operator.get("/v1/queues?task_queue=q").await["queues"][0].clone();
    assert_eq!(of_queue().await["max_in_flight"], 9);
    let body = r#"{"task_queue": "q", "task_type": "t", "max_in_flight": "none"}"#;
    operator.change("POST", "/v1/queues", body).await;
    assert_eq!(of_queue().await["max_in_flight"], json!(null));
}

#[tokio::test]
async fn a_queue_s_counts_tell_apart_what_waits_for_what() {
    let stage = Stage::set(&[]).await;
    let operator = Operator::of(&stage.replica);
    for more in ["", "priority => 3", "delay => '1 hour'", "", "", "", ""] {
        enqueue(&stage.db, more).await;
    }
    stage
        .db
        .batch_execute(
            "update fencepost.live as l set hold = held.bits
            from (
                select id, (array[1, 2, 6])[row_number() over (order by id)] as bits
                from fencepost.live where priority = 1 and visible_after < now() + interval '1 minute'
            ) as held
            where held.id = l.id and held.bits is not null",
        )
        .await
        .unwrap();
    let mut worker = stage.worker().await;
    worker.accept_next().await;
    let queue = eventually(Duration::from_secs(20), async || {
        let queue = operator.get("/v1/queues?task_queue=q").await["queues"][0].clone();
        (queue["claimed"] == 1).then_some(queue)
    })
    .await;
    assert_eq!(
        queue["ready"],
        json!({"tasks": 2, "estimated": false}),
        "{queue}"
    );
    assert_eq!(queue["later"], json!({"tasks": 1, "estimated": false}));
    assert_eq!(
        queue["held"],
        json!({"workflow_paused": 1, "key_busy": 2, "throttled": 1})
    );
    assert!(queue["oldest_ms"].is_u64());
}

#[tokio::test]
async fn a_look_at_many_tenants_is_taken_in_pages_and_misses_none() {
    use fencepost::store::routes;
    let queue = Queue::new().await;
    let client = queue.client().await;
    client
        .batch_execute(
            "insert into fencepost.namespace (name) select 't' || n from generate_series(1, 3000) as n;
            insert into fencepost.route (namespace_id, task_queue, task_type)
            select namespace_id, 'q', 't' from fencepost.namespace;
            insert into fencepost.live (id, route_id, priority, visible_after)
            select n, n % 3000 + 1, 1, now() - interval '1 second' from generate_series(1, 6000) as n",
        )
        .await
        .unwrap();
    let all = routes::find_due(&client).await.unwrap();
    assert_eq!(all.len(), 3000);
    let page = routes::find_due_from(&client, Some((2999, 1)), 10)
        .await
        .unwrap();
    assert_eq!((page.lanes.len(), page.more), (1, false));
    let page = routes::find_due_from(&client, None, 10).await.unwrap();
    assert_eq!((page.lanes.len(), page.more), (10, true));
    assert_eq!(page.lanes[..], all[..10]);
}
