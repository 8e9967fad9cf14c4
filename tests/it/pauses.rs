//! Pause and resume: what operators keep from starting, in the tables, at every door, and on every replica.

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost::domain::pause::{Address, Pause};
use fencepost::domain::route::Route;
use fencepost::store::claim::LaneRequest;
use fencepost::store::pauses::{self, NewPause};
use fencepost::store::{Error, queues, routes};
use serde_json::{Value, json};

use crate::lifecycle::{SHORT, Stage};
use crate::support::plan::{Plan, prepare};
use crate::support::scripted_worker::register;
use crate::support::tasks::{CANCELLED, DONE, FAILED, count, ended, enqueue, enqueue_many, live};
use crate::support::{
    Operator, Producers, Queue, Replica, ScriptedWorker, TestDb, eventually, fencepost,
};

const STEP: Duration = Duration::from_secs(20);

/// Namespace, queue, type and node, empty for none.
type Names = [&'static str; 4];

fn address(names: Names) -> Address {
    let [namespace, task_queue, task_type, node] =
        names.map(|name| (!name.is_empty()).then(|| name.to_owned()));
    Address {
        namespace,
        task_queue,
        task_type,
        node,
    }
}

fn new(names: Names) -> NewPause {
    NewPause {
        everything: names == ["", "", "", ""],
        address: address(names),
        ..NewPause::default()
    }
}

const ROUTES: [Names; 6] = [
    ["a", "q", "t", ""],
    ["a", "q", "t", "n"],
    ["a", "q", "u", ""],
    ["a", "r", "t", ""],
    ["b", "q", "t", ""],
    ["b", "r", "u", "n"],
];

/// One due task on each of the routes.
async fn fill(queue: &Queue) -> Vec<Route> {
    let client = queue.client().await;
    for [namespace, task_queue, task_type, node] in ROUTES {
        let call = "select from fencepost.enqueue($2, $3, namespace => $1, node => nullif($4, ''))";
        let names: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&namespace, &task_queue, &task_type, &node];
        client.query(call, &names).await.unwrap();
    }
    let ids: Vec<i32> = (1..=9).collect();
    let routes = routes::read(&client, &ids).await.unwrap();
    assert_eq!(routes.len(), ROUTES.len());
    routes
}

/// The routes of which a claim takes a task now; nothing stays claimed.
async fn claimable(queue: &Queue, routes: &[Route]) -> BTreeSet<i32> {
    let mut client = queue.client().await;
    let transaction = client.transaction().await.unwrap();
    let lanes: Vec<LaneRequest> = routes
        .iter()
        .map(|route| LaneRequest {
            route: route.id,
            ..Queue::lane(1, 1)
        })
        .collect();
    let tokens = queue.claim_lanes(&transaction, lanes, vec![99]).await;
    let ids: Vec<i64> = tokens.iter().map(|token| token.id).collect();
    let select = "select route_id from fencepost.task where id = any($1)";
    let rows = transaction.query(select, &[&ids]).await.unwrap();
    let taken = rows.iter().map(|row| row.get(0)).collect();
    transaction.rollback().await.unwrap();
    taken
}

#[tokio::test]
async fn a_pause_binds_what_it_covers_whoever_asks() {
    let queue = Queue::new().await;
    let routes = fill(&queue).await;
    let client = queue.client().await;
    let cases: &[&[Names]] = &[
        &[],
        &[["", "", "", ""]],
        &[["a", "", "", ""]],
        &[["", "q", "", ""]],
        &[["", "", "u", ""]],
        &[["", "", "", "n"]],
        &[["a", "q", "", ""]],
        &[["a", "q", "t", "n"]],
        &[["nobody", "", "", ""]],
        // Each binds on its own, whatever another one leaves open.
        &[["a", "", "", ""], ["a", "q", "t", ""]],
        &[["b", "", "", ""], ["", "", "t", "n"]],
    ];
    for pauses in cases {
        for names in *pauses {
            assert!(pauses::pause(&client, &new(*names)).await.unwrap());
        }
        let read: Vec<Pause> = pauses::read(&client).await.unwrap();
        let is_open = |route: &&Route| !read.iter().any(|pause| pause.address.covers(route));
        let open: BTreeSet<i32> = routes
            .iter()
            .filter(is_open)
            .map(|route| route.id)
            .collect();
        assert_eq!(claimable(&queue, &routes).await, open, "{pauses:?}");
        let due = routes::find_due(&client).await.unwrap();
        assert_eq!(due.len(), ROUTES.len());
        let due = due.iter().filter(|lane| lane.is_open());
        assert_eq!(
            due.map(|lane| lane.route).collect::<BTreeSet<_>>(),
            open,
            "{pauses:?}"
        );
        let listed = queues::list(&client, queues::Wanted::default(), 1, 99)
            .await
            .unwrap();
        let listed = listed.iter().filter(|queue| !queue.paused).count();
        assert_eq!(listed, open.len(), "{pauses:?}");
        for pause in read {
            let everything = pause.address == Address::default();
            pauses::resume(&client, &pause.address, everything)
                .await
                .unwrap();
        }
    }
    assert_eq!(claimable(&queue, &routes).await.len(), ROUTES.len());
}

#[tokio::test]
async fn resuming_one_of_two_pauses_leaves_the_other() {
    let queue = Queue::new().await;
    let routes = fill(&queue).await;
    let client = queue.client().await;
    for names in [["a", "", "", ""], ["a", "q", "", ""]] {
        pauses::pause(&client, &new(names)).await.unwrap();
    }
    let resume = async |names| pauses::resume(&client, &address(names), false).await;
    resume(["a", "", "", ""]).await.unwrap();
    let open = claimable(&queue, &routes).await;
    assert_eq!(open.len(), 3, "all but the three of queue q in a");
    resume(["a", "q", "", ""]).await.unwrap();
    assert_eq!(claimable(&queue, &routes).await.len(), ROUTES.len());
}

#[tokio::test]
async fn a_namespace_is_paused_before_it_is_there_and_with_all_its_later_routes() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    pauses::pause(&client, &new(["a", "", "", ""]))
        .await
        .unwrap();
    let routes = fill(&queue).await;
    let open = claimable(&queue, &routes).await;
    let of_b = routes.iter().filter(|route| route.namespace == "b");
    assert_eq!(open, of_b.map(|route| route.id).collect());
    let namespaces = queues::list_namespaces(&client, None, 9).await.unwrap();
    let paused = namespaces.iter().map(|one| (one.name.as_str(), one.paused));
    assert_eq!(paused.collect::<Vec<_>>(), [("a", true), ("b", false)]);
}

#[tokio::test]
async fn pausing_again_says_so_and_resuming_needs_the_address() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let pause = |reason: &str, by: &str, cancel_running| NewPause {
        reason: reason.into(),
        by: by.into(),
        cancel_running,
        ..new(["a", "q", "", ""])
    };
    assert!(
        pauses::pause(&client, &pause("flood", "olga", true))
            .await
            .unwrap()
    );
    let first = pauses::read(&client).await.unwrap().remove(0);
    assert_eq!(
        (first.reason.as_str(), first.by.as_str()),
        ("flood", "olga")
    );
    assert!(
        !pauses::pause(&client, &pause("still", "ivan", false))
            .await
            .unwrap()
    );
    let second = pauses::read(&client).await.unwrap();
    let expected = Pause {
        reason: "still".into(),
        by: "ivan".into(),
        ..first.clone()
    };
    assert_eq!(
        second,
        [expected],
        "since when, and the order to stop, stay"
    );

    let refusal = async |names, everything| match pauses::resume(
        &client,
        &address(names),
        everything,
    )
    .await
    {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    for (names, everything) in [
        (["a", "", "", ""], false),
        (["a", "q", "t", ""], false),
        (["", "", "", ""], true),
    ] {
        let refused = refusal(names, everything).await;
        assert_eq!(
            (refused.code.as_str(), refused.slug.as_str()),
            ("FP020", "not_paused")
        );
        assert!(
            refused.message.contains("namespace a, queue q"),
            "{refused}"
        );
    }
    let since = pauses::resume(&client, &address(["a", "q", "", ""]), false).await;
    assert_eq!(since.unwrap(), first.since);
    let refused = refusal(["a", "q", "", ""], false).await;
    assert!(refused.message.contains("nothing is paused"), "{refused}");
}

#[tokio::test]
async fn without_pauses_a_claim_looks_once_whether_there_are_any() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    queue.enqueue(10).await;
    prepare(
        &client,
        "claim_tasks",
        include_str!("../../sql/claim_tasks.sql"),
    )
    .await;
    let execute = format!(
        "execute claim_tasks({}, 1, '{{1}}', '{{1}}', '{{5}}', '{{1970-01-01}}', '{{0}}', '{{1}}', '{{5}}', 1, 1, 30000, '{{null}}', '{{null}}', '{{false}}', '{{false}}')",
        queue.dispatcher
    );
    let looks = async || {
        let plan = Plan::measure(&client, &execute).await;
        let reads = |table: &str| {
            let nodes = plan.nodes();
            let of_table = nodes
                .iter()
                .filter(|(node, _)| node["Relation Name"] == table);
            let read = of_table.map(|(node, _)| {
                let pages = node["Shared Hit Blocks"].as_u64().unwrap()
                    + node["Shared Read Blocks"].as_u64().unwrap();
                (node["Actual Loops"].as_u64().unwrap(), pages)
            });
            read.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        (reads("pause"), reads("route"))
    };
    looks().await;
    let (pause, before) = looks().await;
    assert!(pause.0 == 1 && pause.1 <= 2, "{pause:?}");
    pauses::pause(&client, &new(["other", "", "", ""]))
        .await
        .unwrap();
    let (_, after) = looks().await;
    assert_eq!(
        after.0,
        before.0 + 1,
        "one look for each route that is asked for, and none before"
    );
}

async fn say(replica: &Replica, verb: &str, body: Value) -> Value {
    let operator = Operator::of(replica);
    operator
        .change("POST", &format!("/v1/{verb}"), &body.to_string())
        .await
}

/// Two replicas and a worker with eight slots at each, which ends what it gets at once.
struct Flow {
    db: tokio_postgres::Client,
    replicas: Vec<Replica>,
    working: tokio::task::JoinSet<()>,
    test: TestDb,
}

impl Flow {
    async fn start() -> Self {
        let test = TestDb::new().await;
        let mut flow = Self {
            db: test.connect().await,
            replicas: Vec::new(),
            working: tokio::task::JoinSet::new(),
            test,
        };
        for number in 0..2 {
            let replica = Replica::start(&flow.test.url(), SHORT).await;
            let named = fencepost::proto::worker::Register {
                identity: format!("w{number}"),
                slots: 8,
                task_types: vec!["t".into(), "other".into()],
                ..register()
            };
            let mut worker = ScriptedWorker::connect_as(&replica.url(), named).await;
            flow.working.spawn(async move {
                while let Some(task) = next(&mut worker).await {
                    worker.accept(&[&task]).await;
                    worker.succeed(&task, "1").await;
                }
            });
            flow.replicas.push(replica);
        }
        flow
    }

    async fn done(&self, task_type: &str) -> i64 {
        count(
            &self.db,
            &format!(
                "select count(*) from fencepost.outcome inner join fencepost.task using (id)
                inner join fencepost.route using (route_id) where task_type = '{task_type}'"
            ),
        )
        .await
    }

    async fn wait_for(&self, task_type: &str, number: i64) {
        eventually(STEP, async || {
            (self.done(task_type).await >= number).then_some(())
        })
        .await;
    }

    async fn enqueue_other(&self, number: i32) {
        let call = "select from fencepost.enqueue_many(
            array['q'], array['other'], array_fill('null'::bytea, array[$1::int])
        )";
        self.db.query(call, &[&number]).await.unwrap();
    }
}

/// The next task, however long that takes.
async fn next(worker: &mut ScriptedWorker) -> Option<fencepost::proto::worker::Task> {
    loop {
        if let Some(task) = worker.next_task().await {
            return Some(task);
        }
    }
}

#[tokio::test]
async fn claims_stop_on_every_replica_and_start_again() {
    let flow = Flow::start().await;
    enqueue_many(&flow.db, 1_000).await;
    flow.wait_for("t", 50).await;
    let body = json!({"task_queue": "q", "task_type": "t", "by": "olga", "reason": "flood"});
    let paused = say(&flow.replicas[0], "pause", body).await;
    assert_eq!(
        (&paused["created"], &paused["by"]),
        (&json!(true), &json!("olga"))
    );
    let at: String = flow
        .db
        .query_one("select clock_timestamp()::text", &[])
        .await
        .unwrap()
        .get(0);
    // Both replicas go on with everything else, so they have looked for work since.
    flow.enqueue_other(60).await;
    flow.wait_for("other", 60).await;
    let claimed_since = format!(
        "select count(*) from (
            select id from fencepost.live where claimed_at > '{at}'
            union all
            select id from fencepost.outcome where claimed_at > '{at}'
        ) as claimed
        inner join fencepost.task using (id)
        inner join fencepost.route on route.route_id = task.route_id
        where task_type = 't'"
    );
    assert_eq!(count(&flow.db, &claimed_since).await, 0);
    let by_replica = "select count(distinct worker) from fencepost.outcome";
    assert_eq!(count(&flow.db, by_replica).await, 2);
    // What ran has ended in peace, and nothing was lost or counted as a failure.
    let running = "select count(*) from fencepost.live where state = 1";
    eventually(STEP, async || {
        (count(&flow.db, running).await == 0).then_some(())
    })
    .await;
    let left = count(&flow.db, "select count(*) from fencepost.live").await;
    assert!(left > 0, "the pause came too late to show anything");
    assert_eq!(flow.done("t").await + left, 1_000);

    let resumed = say(
        &flow.replicas[1],
        "resume",
        json!({"task_queue": "q", "task_type": "t"}),
    )
    .await;
    assert_eq!(resumed["paused_since"], paused["since"]);
    flow.wait_for("t", 1_000).await;
    for (what, expected) in [
        ("failure", 0),
        ("outcome where state <> 1", 0),
        ("outcome where attempt > 0", 0),
        ("outcome where fence > 1", 0),
    ] {
        let select = format!("select count(*) from fencepost.{what}");
        assert_eq!(count(&flow.db, &select).await, expected, "{what}");
    }
}

/// Statements are counted by their transactions; beats, of which there are five a second, are the clock.
#[tokio::test]
async fn free_slots_do_not_spin_on_a_paused_queue() {
    let flow = Flow::start().await;
    enqueue_many(&flow.db, 10).await;
    flow.wait_for("t", 10).await;
    let beats = async |number: i64, act: &dyn Fn() -> String| {
        let now = "select sum(beat)::bigint from fencepost.dispatcher";
        let commits = "select xact_commit from pg_stat_database where datname = current_database()";
        let start = count(&flow.db, now).await;
        let before = count(&flow.db, commits).await;
        let mut own = 0;
        while count(&flow.db, now).await < start + number {
            flow.db.batch_execute(&act()).await.unwrap();
            own += 2;
        }
        count(&flow.db, commits).await - before - own
    };
    let quiet = beats(40, &|| "select pg_sleep(0.02)".to_owned()).await;
    say(&flow.replicas[0], "pause", json!({"namespace": "default"})).await;
    enqueue_many(&flow.db, 1_000).await;
    // Each of these wakes the replicas, which sleep.
    let paused = beats(40, &|| {
        "select from fencepost.enqueue('q', 't'); select pg_sleep(0.02)".to_owned()
    })
    .await;
    println!("{quiet} transactions while all was quiet, {paused} while the queue was paused");
    assert!(paused < quiet * 3 / 2 + 100, "{quiet} and {paused}");
    say(&flow.replicas[0], "resume", json!({"namespace": "default"})).await;
    eventually(STEP, async || {
        let left = count(&flow.db, "select count(*) from fencepost.live").await;
        (left == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pause_survives_restarts_and_lets_start_deadlines_end() {
    let test = TestDb::new().await;
    let db = test.connect().await;
    let mut replica = Replica::start(&test.url(), SHORT).await;
    say(&replica, "pause", json!({"task_queue": "q", "by": "olga"})).await;
    replica.kill().await;
    let replica = Replica::start(&test.url(), SHORT).await;
    let operator = Operator::of(&replica);
    let waits = enqueue(&db, "").await;
    let expires = enqueue(&db, "schedule_to_start => '300 ms'").await;
    let mut worker = ScriptedWorker::connect(&replica.url()).await;
    operator
        .worker("scripted", |one| one["state"] == "ready")
        .await;
    let end = ended(&db, expires).await;
    assert_eq!(
        (end.state, end.class.as_deref()),
        (FAILED, Some("schedule_to_start"))
    );
    let told =
        "select error_message from fencepost.outcome where error_class = 'schedule_to_start'";
    let told: String = db.query_one(told, &[]).await.unwrap().get(0);
    assert!(
        told.contains("paused: ") && told.contains("by olga"),
        "{told}"
    );

    let why = operator.stands(waits, "paused").await;
    assert_eq!(why["pauses"][0]["by"], "olga");
    assert_eq!(operator.unserved().await, Vec::<Value>::new());
    worker.gets_nothing_for(Duration::from_millis(300)).await;
    let list = operator.get("/v1/pauses").await;
    assert_eq!(list["pauses"][0]["task_queue"], "q");
    assert_eq!(list["pauses"][0]["node"], Value::Null);
    let queues = operator.get("/v1/queues").await;
    assert_eq!(queues["queues"][0]["paused"], true);
    say(&replica, "resume", json!({"task_queue": "q"})).await;
    let task = worker.accept_next().await;
    assert_eq!(task.task_id, waits);
    worker.succeed(&task, "1").await;
    worker.recorded(&task).await;
    assert_eq!(ended(&db, waits).await.state, DONE);
}

#[tokio::test]
async fn what_runs_under_a_pause_is_asked_to_stop_where_that_is_wanted() {
    let stage = Stage::set(&[("TASKS__CANCEL_GRACE", "60s")]).await;
    let mut worker = stage.wide_worker(2).await;
    let ids = enqueue_many(&stage.db, 3).await;
    let (first, second) = (worker.accept_next().await, worker.accept_next().await);
    let body = json!({"task_type": "t", "cancel_running": true, "reason": "wrong"});
    let paused = say(&stage.replica, "pause", body).await;
    assert_eq!(
        (
            &paused["cancelled"]["requested"],
            &paused["cancelled"]["ended"]
        ),
        (&json!(2), &json!(0))
    );
    worker.cancelled(&first).await;
    worker.cancelled(&second).await;
    worker.succeed(&first, "1").await;
    worker.recorded(&first).await;
    worker
        .fail(
            &second,
            fencepost::proto::worker::FailureKind::Retryable,
            "odd",
        )
        .await;
    worker.recorded(&second).await;
    for task in [&first, &second] {
        assert_eq!(ended(&stage.db, task.task_id).await.state, CANCELLED);
    }
    let waits = ids
        .into_iter()
        .find(|id| ![first.task_id, second.task_id].contains(id))
        .unwrap();
    assert_eq!(
        live(&stage.db, waits).await.unwrap().state,
        0,
        "what waits goes on waiting"
    );
    worker.gets_nothing_for(Duration::from_millis(300)).await;

    // What is claimed under such a pause, as a claim whose statement began before it may be, does not go unseen.
    say(&stage.replica, "resume", json!({"task_type": "t"})).await;
    let third = worker.accept_next().await;
    let call = "select fencepost.pause(task_type => 't', cancel_running => true)";
    stage.db.batch_execute(call).await.unwrap();
    worker.cancelled(&third).await;
    worker
        .fail(
            &third,
            fencepost::proto::worker::FailureKind::Cancelled,
            "stopped",
        )
        .await;
    worker.recorded(&third).await;
    assert_eq!(ended(&stage.db, third.task_id).await.state, CANCELLED);
    assert_eq!(
        count(&stage.db, "select count(*) from fencepost.failure").await,
        0
    );
}

/// Code and field, by each door.
async fn said(side: &Producers, verb: &str, members: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let arguments: Vec<String> = members
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| format!("{name} => {}", value.to_string().replace('"', "'")))
        .collect();
    let call = format!("select fencepost.{verb}({})", arguments.join(", "));
    let error = side
        .db
        .connect()
        .await
        .query_one(&call, &[])
        .await
        .unwrap_err();
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    let code = error.code().code().replacen("FP", "FP-", 1);
    all.push((code, error.column().unwrap_or_default().to_owned()));

    let path = format!("/v1/{verb}");
    let answer = side.post(&path, members.to_string()).await;
    let (_, code, field) = answer.problem();
    all.push((code, field));

    let mut flags = vec![verb.to_owned()];
    for (name, value) in members.as_object().unwrap() {
        let flag = match name.as_str() {
            "task_queue" => "--queue",
            "task_type" => "--type",
            "everything" => "--all",
            "namespace" => "--namespace",
            _ => "--node",
        };
        flags.push(flag.to_owned());
        flags.extend(value.as_str().map(str::to_owned));
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let output = side.command(&flags, b"").await;
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let told = text.rsplit_once('[').unwrap().1;
    let code = told.split(' ').next().unwrap().to_owned();
    let field = told.split_once("field ").map_or("", |(_, rest)| rest);
    all.push((code, field.trim_end().trim_end_matches(']').to_owned()));
    all
}

#[tokio::test]
async fn every_door_refuses_the_same_pauses() {
    let side = Producers::start().await;
    let long = "x".repeat(201);
    for verb in ["pause", "resume"] {
        for (members, code, field) in [
            (json!({}), "FP-019", "everything"),
            (
                json!({"everything": true, "node": "n"}),
                "FP-019",
                "everything",
            ),
            (json!({"namespace": ""}), "FP-001", "namespace"),
            (json!({"task_queue": "a\u{7f}b"}), "FP-001", "task_queue"),
            (json!({"task_type": long}), "FP-001", "task_type"),
            (json!({"node": "", "task_type": ""}), "FP-001", "task_type"),
        ] {
            let expected = (code.to_owned(), field.to_owned());
            let all = said(&side, verb, &members).await;
            assert_eq!(all, vec![expected; 3], "{verb} {members}");
        }
    }
    let unknown = said(&side, "resume", &json!({"task_queue": "q"})).await;
    assert_eq!(unknown, vec![("FP-020".to_owned(), String::new()); 3]);
    let answer = side.post("/v1/pause", r#"{"queue": "q"}"#);
    assert_eq!(
        answer.await.problem(),
        (400, "FP-102".into(), "queue".into())
    );
    assert_eq!(
        count(
            &side.db.connect().await,
            "select count(*) from fencepost.pause"
        )
        .await,
        0
    );
}

#[tokio::test]
async fn operators_pause_from_the_command_line() {
    let test = TestDb::new().await;
    let run = async |args: &[&str]| {
        let output = fencepost(&test.url(), args).await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, _, stderr) = run(&["pause", "--queue", "q", "--reason", "flood"]).await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("paused: queue q"), "{stderr}");
    let (_, _, stderr) = run(&["pause", "--queue", "q", "--by", "ivan"]).await;
    assert!(stderr.contains("is paused already"), "{stderr}");
    let (code, _, stderr) = run(&["pause", "--all", "--output", "json"]).await;
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stdout, _) = run(&["pause", "--list"]).await;
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("everything") && stdout.contains("ivan"),
        "{stdout}"
    );
    let (code, _, stderr) = run(&["resume", "--namespace", "n"]).await;
    assert_eq!(code, Some(2));
    assert!(stderr.contains("everything; queue q"), "{stderr}");
    let (code, _, stderr) = run(&["resume", "--all"]).await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("still paused: queue q"), "{stderr}");
    let (code, stdout, _) = run(&["resume", "--queue", "q", "--output", "json"]).await;
    assert_eq!(code, Some(0));
    let resumed: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&resumed["task_queue"], &resumed["node"]),
        (&json!("q"), &Value::Null)
    );
    let (_, stdout, stderr) = run(&["pause", "--list"]).await;
    assert_eq!(stdout, "");
    assert!(stderr.contains("nothing is paused"), "{stderr}");
}
