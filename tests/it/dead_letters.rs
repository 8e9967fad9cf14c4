//! Dead letters one by one: listed, shown, redriven, discarded, alike at every door.

use fencepost::domain::settlement::Move;
use fencepost::store::dead_letters::{self, Answer};
use serde_json::{Value, json};

use crate::support::letters::{bury, dead, end_all};
use crate::support::plan::{Plan, prepare};
use crate::support::queue::{FAILED, assert_sound};
use crate::support::{Producers, Queue};

/// Ids of a list over HTTP, all pages of it.
async fn listed(side: &Producers, parameters: &str, limit: usize) -> Vec<String> {
    let (mut ids, mut before) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/dead-letters?limit={limit}{parameters}{before}");
        let answer = side.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let page = answer.json();
        let letters = page["dead_letters"].as_array().unwrap();
        assert!(letters.len() <= limit);
        let found = letters.iter().map(|letter| letter["task_id"].as_str());
        ids.extend(found.map(|id| id.unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => before = format!("&before={next}"),
            None => return ids,
        }
    }
}

async fn command(side: &Producers, args: &[&str]) -> (i32, String, String) {
    let output = side.command(args, b"").await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

async fn json_of(side: &Producers, args: &[&str]) -> Value {
    let (code, stdout, stderr) = command(side, &[args, &["--output", "json"]].concat()).await;
    assert_eq!(code, 0, "{args:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[tokio::test]
async fn letters_are_filtered_and_paged_alike_by_every_door() {
    let side = Producers::start().await;
    let (pool, client) = (&side.state.pool, side.db.connect().await);
    let mut all = Vec::new();
    for (arguments, class) in [
        ("namespace => 'a'", "io"),
        ("namespace => 'a', node => 'gpu'", "io"),
        ("namespace => 'b'", "io"),
        ("namespace => 'b'", "parse"),
        ("namespace => 'b'", "parse"),
    ] {
        let call = format!("select task_id from fencepost.enqueue('q', 't', {arguments})");
        let id: i64 = client.query_one(&call, &[]).await.unwrap().get(0);
        let which = format!("id = {id}");
        end_all(pool, &which, Move::DeadLetter, class, "n").await;
        all.push(id);
    }
    let unserved = dead(pool, "namespace => 'c'").await;
    all.push(unserved);
    client
        .batch_execute(&format!(
            "update fencepost.dead_letter set cause = 'lost', judged = true, dead_at = dead_at - interval '3 hours'
            where id = {unserved};
            update fencepost.dead_letter set redriven_as = 1 where id = {}",
            all[4]
        ))
        .await
        .unwrap();
    // The letter that died hours ago is the last of the list.
    let newest = [all[4], all[3], all[2], all[1], all[0], unserved];
    let text = |places: &[usize]| -> Vec<String> {
        places
            .iter()
            .map(|place| newest[*place].to_string())
            .collect()
    };
    let filters: [(&str, &[&str], &[usize]); 12] = [
        ("", &[], &[0, 1, 2, 3, 4, 5]),
        ("&namespace=a", &["--namespace", "a"], &[3, 4]),
        (
            "&namespace=b&error_class=parse",
            &["--namespace", "b", "--error-class", "parse"],
            &[0, 1],
        ),
        ("&node=gpu", &["--node", "gpu"], &[3]),
        (
            "&task_queue=q&task_type=t&namespace=c",
            &["--queue", "q", "--type", "t", "--namespace", "c"],
            &[5],
        ),
        ("&cause=lost", &["--cause", "lost"], &[5]),
        ("&older_than=2h", &["--older-than", "2h"], &[5]),
        ("&newer_than=2h", &["--newer-than", "2h"], &[0, 1, 2, 3, 4]),
        ("&judged=true", &["--judged", "true"], &[5]),
        ("&redriven=true", &["--redriven", "true"], &[0]),
        (
            "&dead_before=2020-01-01T00:00:00Z",
            &["--dead-before", "2020-01-01T00:00:00Z"],
            &[],
        ),
        (
            "&dead_after=2020-01-01T00:00:00Z&redriven=false",
            &[
                "--dead-after",
                "2020-01-01T00:00:00Z",
                "--redriven",
                "false",
            ],
            &[1, 2, 3, 4, 5],
        ),
    ];
    for (parameters, flags, places) in filters {
        assert_eq!(
            listed(&side, parameters, 2).await,
            text(places),
            "{parameters}"
        );
        let shown = json_of(&side, &[&["dead", "list"], flags].concat()).await;
        let ids: Vec<&str> = shown
            .as_array()
            .unwrap()
            .iter()
            .map(|letter| letter["task_id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, text(places), "{flags:?}");
    }
    let (code, stdout, _) = command(&side, &["dead-letter", "list"]).await;
    assert_eq!(code, 0);
    assert!(
        stdout.contains("parse") && stdout.contains("gpu"),
        "{stdout}"
    );
}

#[tokio::test]
async fn a_page_ends_after_so_many_letters_whatever_it_found() {
    let side = Producers::start().await;
    let client = side.db.connect().await;
    client
        .batch_execute(
            "insert into fencepost.namespace (name) values ('default');
            insert into fencepost.route (namespace_id, task_queue, task_type) values (1, 'q', 't');
            insert into fencepost.dead_letter (
                id, origin, dead_at, enqueued_at, route_id, attempt, losses, epoch, fence, priority, cause,
                error_class, settle_accepted, content_type, payload
            )
            select
                n, n, timestamptz '2026-01-01' + n / 10 * interval '1 second', now(), 1, 0, 0, 0, 1, 1, 'failed',
                case when n % 2500 = 7 then 'rare' else 'usual' end, false, 'text/plain', 'x'
            from generate_series(1, 5000) as n",
        )
        .await
        .unwrap();
    let first = side.get("/v1/dead-letters?error_class=rare").await.json();
    let ids: Vec<&Value> = first["dead_letters"].as_array().unwrap().iter().collect();
    assert_eq!(
        ids.len(),
        0,
        "2,000 are looked at, and the rare ones lie deeper"
    );
    assert!(first["next"].is_string());
    assert_eq!(listed(&side, "&error_class=rare", 10).await, ["2507", "7"]);
    assert_eq!(listed(&side, "", 999).await.len(), 5000);
}

#[tokio::test]
async fn a_letter_shows_every_try_and_where_it_was_lost() {
    let side = Producers::start().await;
    let (pool, client) = (&side.state.pool, side.db.connect().await);
    let call = "select task_id from fencepost.enqueue('q', 't', '{\"secret\": 1}', labels => '{\"team\": \"x\"}')";
    let id: i64 = client.query_one(call, &[]).await.unwrap().get(0);
    let which = format!("id = {id}");
    end_all(pool, &which, Move::RetryAtOnce, "connection_lost", "rack-1").await;
    end_all(pool, &which, Move::Retry, "io", "rack-2").await;
    end_all(pool, &which, Move::DeadLetter, "fatal", "rack-3").await;

    let answer = side.get(&format!("/v1/dead-letters/{id}")).await;
    let letter = answer.json();
    assert_eq!(letter["cause"], "failed");
    assert_eq!(
        (&letter["attempt"], &letter["losses"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(letter["lost_on"], json!(["rack-1"]));
    assert_eq!(letter["judged"], false);
    assert_eq!(letter["labels"]["team"], "x");
    let tries: Vec<(&Value, &Value, &Value)> = letter["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["attempt"], &one["error_class"], &one["node"]))
        .collect();
    assert_eq!(
        tries,
        [
            (&json!(1), &json!("connection_lost"), &json!("rack-1")),
            (&json!(2), &json!("io"), &json!("rack-2")),
            (&json!(3), &json!("fatal"), &json!("rack-3")),
        ]
    );
    assert_eq!(letter["failures"][2]["error_message"], "it broke");
    assert!(
        !answer.text.contains("secret"),
        "a payload is shown only on ask"
    );
    let asked = side
        .get(&format!("/v1/dead-letters/{id}?payload=true"))
        .await;
    assert_eq!(asked.json()["payload"], json!({"secret": 1}));

    let id = id.to_string();
    let shown = json_of(&side, &["dead", "show", &id]).await;
    assert_eq!(shown, letter);
    let (code, stdout, _) = command(&side, &["dead", "show", &id, "--payload"]).await;
    assert_eq!(code, 0);
    for part in ["rack-1", "connection_lost", "secret"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let (code, _, stderr) = command(&side, &["dead", "show", "7"]).await;
    assert_eq!(code, 2);
    assert!(stderr.contains("FP-130"), "{stderr}");
}

#[tokio::test]
async fn a_redrive_is_a_new_task_that_carries_origin_epoch_and_fence() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let first = queue
        .enqueue_with(
            "'{\"a\": 1}', dispatch_key => 'once', priority => 2, max_attempts => 7, run_timeout => '9 s',
            heartbeat_timeout => '3 s', schedule_to_start => '1 hour', concurrency_key => 'k',
            labels => '{\"l\": \"m\"}', options => '{\"backoff_base_ms\": 5}', settle => 'accepted'",
        )
        .await;
    let which = format!("id = {first}");
    end_all(&queue.pool, &which, Move::Retry, "io", "n").await;
    bury(&queue.pool, &which).await;
    let redrive = async |id| {
        let answers = dead_letters::redrive(&client, &[id], false, false).await;
        answers.unwrap().remove(0)
    };
    let second = redrive(first).await.task.unwrap();
    assert!(second > first);
    let row = queue.row(second).await;
    // Two epochs of the first were spent, and its third delivery is the next.
    assert_eq!((row.epoch, row.fence), (2, 2));
    assert_eq!((row.attempt, row.losses, row.state, row.hold), (0, 0, 0, 0));
    let same = "select count(*) from fencepost.task as old inner join fencepost.task as new on true
        where old.id < new.id and new.origin = old.id and old.origin = old.id and old.dispatch_key = 'once'
            and new.dispatch_key is null
            and (old.route_id, old.max_attempts, old.run_timeout_ms, old.heartbeat_timeout_ms) =
                (new.route_id, new.max_attempts, new.run_timeout_ms, new.heartbeat_timeout_ms)
            and (old.schedule_to_start_ms, old.settle_accepted, old.content_type, old.concurrency_key) =
                (new.schedule_to_start_ms, new.settle_accepted, new.content_type, new.concurrency_key)
            and (old.labels, old.options, old.payload) = (new.labels, new.options, new.payload)";
    assert_eq!(queue.number(same).await, 1);
    let live = "select count(*) from fencepost.live
        where priority = 2 and run_timeout_ms = 9000 and start_by - visible_after = interval '1 hour'";
    assert_eq!(queue.number(live).await, 1);
    // The key stays with the dead task: the same call is answered with it.
    let again = queue.enqueue_with("'{}', dispatch_key => 'once'").await;
    assert_eq!(again, first);

    assert_eq!(redrive(first).await.refused.unwrap(), "already_redriven");
    bury(&queue.pool, &format!("id = {second}")).await;
    assert_eq!(queue.outcome(second).await.unwrap().state, FAILED);
    let third = redrive(second).await.task.unwrap();
    assert_eq!(
        (queue.row(third).await.epoch, queue.row(third).await.fence),
        (3, 3)
    );
    let letter = dead_letters::read(&client, second, false)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(letter.origin, first);
    let chain: Vec<(i64, &str, bool)> = letter
        .chain
        .iter()
        .map(|task| (task.id, task.state.as_str(), task.dead_at.is_some()))
        .collect();
    assert_eq!(
        chain,
        [
            (first, "failed", true),
            (second, "failed", true),
            (third, "unfinished", false)
        ]
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn force_overrides_the_owners_judgement_and_nothing_else() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let (judged, plain) = (
        dead(&queue.pool, "'1'").await,
        dead(&queue.pool, "'2'").await,
    );
    queue
        .execute(&format!(
            "update fencepost.dead_letter set judged = true where id = {judged}"
        ))
        .await;
    let redrive = async |ids: &[i64], forced| {
        let answers = dead_letters::redrive(&client, ids, forced, false)
            .await
            .unwrap();
        let said = |answer: Answer| (answer.id, answer.task.is_some(), answer.refused);
        answers.into_iter().map(said).collect::<Vec<_>>()
    };
    let refused = |id, why: &str| (id, false, Some(why.to_owned()));
    assert_eq!(
        // Asked twice for the same one, and for one that never was.
        redrive(&[plain, judged, plain, 5], false).await,
        [
            refused(5, "not_found"),
            refused(judged, "judged"),
            (plain, true, None)
        ]
    );
    assert_eq!(
        redrive(&[judged, plain], true).await,
        [(judged, true, None), refused(plain, "already_redriven")]
    );
    assert_eq!(
        redrive(&[judged], true).await,
        [refused(judged, "already_redriven")]
    );
    assert_eq!(queue.number("select count(*) from fencepost.live").await, 2);
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_member_joins_its_run_again_unless_that_is_over() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let start = async |mode: &str| {
        let call = "select workflow_id, run_id, task_ids from fencepost.start_workflow(
                task_queue => array['q'], task_type => array['t'], payload => array['1'::bytea, '2'::bytea, '3'::bytea],
                mode => $1
            )";
        let row = client.query_one(call, &[&mode]).await.unwrap();
        (
            row.get::<_, i64>(0),
            row.get::<_, i64>(1),
            row.get::<_, Vec<i64>>(2),
        )
    };
    let redrive = async |id: i64| {
        let answers = dead_letters::redrive(&client, &[id], true, false).await;
        answers.unwrap().remove(0)
    };
    let (workflow, run, members) = start("all").await;
    for member in &members[..2] {
        bury(&queue.pool, &format!("id = {member}")).await;
    }
    let first = redrive(members[0]).await.task.unwrap();
    let call = "select fencepost.pause_workflow($1)";
    client.query_one(call, &[&workflow]).await.unwrap();
    let held = redrive(members[1]).await.task.unwrap();
    assert_eq!(
        (queue.row(first).await.hold, queue.row(held).await.hold),
        (0, 1)
    );
    let joined = format!(
        "select count(*) from fencepost.workflow_member as member
        inner join fencepost.live on live.id = member.task_id and live.run_id = member.run_id
        inner join fencepost.task on task.id = live.id and task.ordinal = member.ordinal
        where member.run_id = {run}"
    );
    assert_eq!(queue.number(&joined).await, 3);
    let told = format!(
        "select count(*) from fencepost.workflow_event
        where run_id = {run} and kind = 'member_redriven' and task_id in ({first}, {held})"
    );
    assert_eq!(queue.number(&told).await, 2);

    let (_, run, members) = start("fail_fast").await;
    bury(&queue.pool, &format!("id = {}", members[0])).await;
    let call = "select fencepost.finish_run($1)";
    let state: String = client.query_one(call, &[&run]).await.unwrap().get(0);
    assert_eq!(state, "failed");
    // Even by force.
    assert_eq!(
        redrive(members[0]).await.refused.unwrap(),
        "workflow_is_over"
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn two_redrives_of_the_same_letter_make_one_task() {
    let queue = Queue::new().await;
    let id = dead(&queue.pool, "'1'").await;
    let mut first = queue.client().await;
    let second = queue.client().await;
    let backend = crate::support::queue::backend(&second).await;
    let transaction = first.transaction().await.unwrap();
    let call = "select task_id, refused from fencepost.redrive_dead_letters(array[$1::bigint])";
    let made: Option<i64> = transaction.query_one(call, &[&id]).await.unwrap().get(0);
    assert!(made.is_some());
    let late = queue
        .waits(
            backend,
            second.query_one(call, &[&id]),
            transaction.commit(),
        )
        .await
        .unwrap();
    assert_eq!(late.get::<_, &str>("refused"), "already_redriven");
    assert_eq!(queue.number("select count(*) from fencepost.live").await, 1);
}

#[tokio::test]
async fn ids_grow_in_the_order_of_the_letters() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let mut ids = queue.enqueue(300).await;
    bury(&queue.pool, "true").await;
    ids.reverse();
    let answers = dead_letters::redrive(&client, &ids, false, false)
        .await
        .unwrap();
    ids.reverse();
    assert_eq!(
        answers.iter().map(|answer| answer.id).collect::<Vec<_>>(),
        ids
    );
    assert!(answers.is_sorted_by(|one, next| one.task.unwrap() < next.task.unwrap()));
}

#[tokio::test]
async fn a_pin_is_cleared_when_asked_and_the_namespaces_rules_hold() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let ids = [
        dead(&queue.pool, "'1', node => 'gone'").await,
        dead(&queue.pool, "'2', node => 'gone'").await,
        dead(&queue.pool, "'3', node => 'gone'").await,
    ];
    let node = async |task: Option<i64>| {
        let select = "select route.node from fencepost.live inner join fencepost.route using (route_id) where id = $1";
        client
            .query_one(select, &[&task.unwrap()])
            .await
            .unwrap()
            .get::<_, String>(0)
    };
    let redrive = async |id, clear_pin| {
        let answers = dead_letters::redrive(&client, &[id], false, clear_pin).await;
        answers.unwrap().remove(0)
    };
    assert_eq!(node(redrive(ids[0], false).await.task).await, "gone");
    assert_eq!(node(redrive(ids[1], true).await.task).await, "");
    queue
        .execute("select fencepost.set_namespace('default', require_declared_queues => true)")
        .await;
    assert_eq!(
        redrive(ids[2], true).await.refused.unwrap(),
        "queue_not_declared"
    );
    queue
        .execute("select fencepost.declare_queue('q', 't')")
        .await;
    assert_eq!(node(redrive(ids[2], true).await.task).await, "");
}

#[tokio::test]
async fn looks_of_idle_replicas_and_pages_of_lists_read_a_few_pages_whatever_waits() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    client
        .batch_execute(
            "insert into fencepost.namespace (name) select 'n' || n from generate_series(1, 200) as n;
            insert into fencepost.route (namespace_id, task_queue, task_type)
            select n, 'q', 't' from generate_series(1, 200) as n;
            insert into fencepost.dead_letter_hook (namespace_id, notify, webhook, secret)
            select n, true, 'http://localhost/', 'secret' from generate_series(1, 5) as n;
            insert into fencepost.dead_letter (
                id, origin, dead_at, enqueued_at, route_id, attempt, losses, epoch, fence, priority, cause,
                error_class, settle_accepted, content_type, payload
            )
            select
                n, n, now() - n * interval '1 second', now(), n % 200 + 1, 0, 0, 0, 1, 1, 'failed', 'x', false,
                'text/plain', convert_to(repeat('x', 200), 'UTF8')
            from generate_series(1, 30000) as n;
            insert into fencepost.dead_letter_event (letter_id, namespace_id, kind, next_at)
            select n, n % 5 + 1, 'webhook', now() + (n % 1000 - 1) * interval '1 minute'
            from generate_series(1, 30000) as n;
            insert into fencepost.dead_letter_event (letter_id, namespace_id, kind)
            select n, n % 5 + 1, 'notify' from generate_series(1, 30000) as n;
            insert into fencepost.redrive (filter, forced, clear_pin, canary_share, state, total)
            select '{}', false, false, 0.5, 'done', 0 from generate_series(1, 5000);
            analyze fencepost.redrive, fencepost.route",
        )
        .await
        .unwrap();
    macro_rules! pages {
        ($name:literal, $arguments:literal, $most:literal) => {
            let text = include_str!(concat!("../../sql/", $name, ".sql"));
            prepare(&client, $name, text).await;
            let execute = format!("execute {}({})", $name, $arguments);
            for mode in ["force_custom_plan", "force_generic_plan"] {
                let set = format!("set plan_cache_mode = {mode}");
                client.batch_execute(&set).await.unwrap();
                // Functions read the catalogue when they are planned first.
                Plan::measure(&client, &execute).await;
                let plan = Plan::measure(&client, &execute).await;
                assert!(
                    plan.buffers() < $most,
                    "{} ({mode}): {}\n{}",
                    $name,
                    plan.buffers(),
                    plan.text()
                );
            }
        };
    }
    pages!("find_redrives", "16", 10);
    // Four events of each of five owners, each of which is a row, four index entries and a body.
    pages!("claim_letter_events", "'{}', 4, 16, 60000", 1200);
    pages!("send_letter_notices", "20", 600);
    pages!(
        "list_dead_letters",
        "'{}', '9999-01-01', 9223372036854775807, 100, 50",
        1000
    );
    pages!("read_dead_letter", "7, true", 40);
    pages!("list_redriven", "7, 100", 60);
}

#[tokio::test]
async fn what_is_discarded_is_gone_and_its_history_stays() {
    let side = Producers::start().await;
    let (pool, client) = (&side.state.pool, side.db.connect().await);
    let one = dead(pool, "namespace => 'a'").await;
    let two = dead(pool, "namespace => 'a'").await;
    client
        .query("select fencepost.enqueue_many(array['q'], array['t'], array_fill('1'::bytea, array[1200]))", &[])
        .await
        .unwrap();
    bury(pool, "true").await;
    let body = json!({"ids": [one.to_string(), "5"]}).to_string();
    let answer = side.post("/v1/dead-letters/discard", body).await;
    assert_eq!(answer.json(), json!({"discarded": 1, "more": false}));
    assert_eq!(
        side.get(&format!("/v1/dead-letters/{one}")).await.status,
        404
    );
    assert_eq!(
        side.get(&format!("/v1/tasks/{one}")).await.json()["state"],
        "failed"
    );
    let gone = command(&side, &["dead", "discard", &one.to_string()]).await;
    assert_eq!(gone.0, 1, "{gone:?}");

    let filter = json!({"filter": {"namespace": "default"}, "dry_run": true}).to_string();
    let answer = side.post("/v1/dead-letters/discard", filter).await;
    assert_eq!(answer.json(), json!({"letters": 1200}));
    let counted = json_of(
        &side,
        &["dead", "discard", "--namespace", "default", "--dry-run"],
    )
    .await;
    assert_eq!(counted, json!({"letters": 1200}));
    let discarded = json_of(&side, &["dead", "discard", "--namespace", "default"]).await;
    assert_eq!(discarded, json!({"discarded": 1200}));
    assert_eq!(listed(&side, "", 10).await, [two.to_string()]);
    let all = side
        .post("/v1/dead-letters/discard", "{\"all\": true}")
        .await;
    assert_eq!(all.json()["discarded"], 1);
}

#[tokio::test]
async fn every_door_refuses_the_same() {
    let side = Producers::start().await;
    let client = side.db.connect().await;
    let cases: [(&str, &[&str], &str, &str); 8] = [
        ("{}", &[], "FP-041", "all"),
        (
            r#"{"redriven": false, "judged": false}"#,
            &["--redriven", "false", "--judged", "false"],
            "FP-041",
            "all",
        ),
        (
            r#"{"dead_before": "soon"}"#,
            &["--dead-before", "soon"],
            "FP-040",
            "dead_before",
        ),
        (
            r#"{"dead_after": "2026-01-01"}"#,
            &["--dead-after", "2026-01-01"],
            "FP-040",
            "dead_after",
        ),
        (
            r#"{"namespace": ""}"#,
            &["--namespace", ""],
            "FP-040",
            "namespace",
        ),
        (
            r#"{"cause": "a\u0007"}"#,
            &["--cause", "a\u{7}"],
            "FP-040",
            "cause",
        ),
        (
            r#"{"older_than_ms": 100000000000000}"#,
            &["--older-than", "4000y"],
            "FP-040",
            "older_than_ms",
        ),
        (
            r#"{"error_class": "\n"}"#,
            &["--error-class", "\n"],
            "FP-040",
            "error_class",
        ),
    ];
    for (filter, flags, code, field) in cases {
        let said = client
            .query(
                "select fencepost.start_redrive($1::text::jsonb)",
                &[&filter],
            )
            .await
            .unwrap_err();
        let said = said.as_db_error().unwrap();
        let by_sql = said.code().code().replacen("FP", "FP-", 1);
        assert_eq!(
            (by_sql.as_str(), said.column().unwrap()),
            (code, field),
            "{filter}"
        );
        for call in ["redrive", "discard"] {
            let body = format!("{{\"filter\": {filter}}}");
            let answer = side.post(&format!("/v1/dead-letters/{call}"), body).await;
            let problem = (400, code.to_owned(), field.to_owned());
            assert_eq!(answer.problem(), problem, "{call} {filter}");
            let (exit, _, stderr) = command(&side, &[&["dead", call], flags].concat()).await;
            assert_eq!(exit, 2, "{stderr}");
            assert!(
                stderr.contains(code) && stderr.contains(field),
                "{flags:?}: {stderr}"
            );
        }
    }
    for (body, code, field) in [
        (r#"{"filter": {"colour": "red"}}"#, "FP-040", "colour"),
        (r#"{"filter": {"namespace": 7}}"#, "FP-040", "namespace"),
        (r#"{"filter": {"judged": "yes"}}"#, "FP-040", "judged"),
        (r#"{"filter": [], "all": true}"#, "FP-040", "filter"),
        (r#"{"filter": {"namespace": "\u0000"}}"#, "FP-040", "filter"),
        (r#"{"all": true, "rate": 0}"#, "FP-042", "rate"),
        (r#"{"all": true, "canary": 0}"#, "FP-042", "canary"),
        (
            r#"{"all": true, "canary": 5, "canary_share": 1.5}"#,
            "FP-042",
            "canary_share",
        ),
        (
            r#"{"all": true, "canary_share": 0.5}"#,
            "FP-042",
            "canary_share",
        ),
        (r#"{"ids": []}"#, "FP-103", "ids"),
        (r#"{"ids": ["x"]}"#, "FP-103", "ids"),
        (r#"{"ids": ["1"], "filter": {}}"#, "FP-103", "ids"),
        (r#"{"ids": ["1"], "all": true}"#, "FP-103", "all"),
        (r#"{"ids": ["1"], "rate": 5}"#, "FP-103", "rate"),
        (r#"{"all": true, "hurry": true}"#, "FP-102", "hurry"),
    ] {
        let answer = side.post("/v1/dead-letters/redrive", body).await;
        assert_eq!(
            answer.problem(),
            (400, code.to_owned(), field.to_owned()),
            "{body}"
        );
    }
    for flags in [
        &["--all", "--rate", "0"][..],
        &["--all", "--canary", "0"],
        &["--all", "--canary-share", "0.5"],
        &["1", "--all"],
        &["1", "--namespace", "a"],
    ] {
        let (exit, _, stderr) = command(&side, &[&["dead", "redrive"], flags].concat()).await;
        assert_eq!(exit, 2, "{flags:?}: {stderr}");
    }
    for (path, status, code) in [
        ("/v1/dead-letters?colour=red", 400, "FP-102"),
        ("/v1/dead-letters?before=x", 400, "FP-103"),
        ("/v1/dead-letters?limit=0", 400, "FP-103"),
        ("/v1/dead-letters?dead_before=x", 400, "FP-040"),
        ("/v1/redrives/7", 404, "FP-131"),
        ("/v1/dead-letters/7", 404, "FP-130"),
    ] {
        let (said, named, _) = side.get(path).await.problem();
        assert_eq!((said, named.as_str()), (status, code), "{path}");
    }
    for action in ["stop", "resume"] {
        let answer = side.post(&format!("/v1/redrives/7/{action}"), "").await;
        assert_eq!(answer.problem().1, "FP-131");
    }
    assert_eq!(
        side.post("/v1/redrives/7/burn", "").await.problem().1,
        "FP-106"
    );
    let redrives: i64 = client
        .query_one("select count(*) from fencepost.redrive", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(redrives, 0, "what is refused leaves nothing behind");
    assert_sound(&side.state.pool.get().await.unwrap()).await;
}

#[tokio::test]
async fn ids_are_redriven_at_once_and_answered_one_by_one() {
    let side = Producers::start().await;
    let pool = &side.state.pool;
    let (one, two) = (dead(pool, "'1'").await, dead(pool, "'2'").await);
    let body = json!({"ids": [one.to_string(), "5"]}).to_string();
    let answer = side.post("/v1/dead-letters/redrive", body).await;
    assert_eq!(answer.status, 200);
    let letters = answer.json()["dead_letters"].take();
    assert_eq!(
        letters[0],
        json!({"task_id": "5", "redriven_as": null, "refused": "not_found"})
    );
    let made = letters[1]["redriven_as"].as_str().unwrap();
    assert_eq!(
        side.get(&format!("/v1/tasks/{made}")).await.json()["state"],
        "ready"
    );
    let line = side.get(&format!("/v1/dead-letters/{one}")).await.json();
    assert_eq!(line["redriven_as"], made);
    let made = json_of(&side, &["dead", "redrive", &two.to_string()]).await;
    assert!(made[0]["redriven_as"].is_string(), "{made}");
    let (code, stdout, _) = command(&side, &["dead", "redrive", &two.to_string()]).await;
    assert_eq!(code, 1);
    assert!(stdout.contains("already_redriven"), "{stdout}");
}
