//! The plans of the hot statements over a hundred thousand unfinished tasks, and the pages that they read.

use deadpool_postgres::GenericClient;
use fencepost::domain::id::{TaskId, Token};
use fencepost::store::claim::LaneRequest;
use fencepost::store::{Client, claim, runs, settle};

use crate::support::Queue;
use crate::support::plan::{Plan, array, conditions, large_table, prepare, repeat};
use crate::support::queue::{DEADLINES, success};

const ROUTES: i32 = 20;
const CLAIM_TASKS: &str = include_str!("../../sql/claim_tasks.sql");

/// Bodies and rows over all routes and priorities, of which so many are due; of the others every second one is due
/// in the future and every second one is held. Bodies fall into three days. As many tasks have ended.
pub async fn fill(client: &impl GenericClient, tasks: i32, due: i32) {
    let id = "(fencepost.id_ms(now() + (n % 3 - 1) * interval '1 day') << 22) + n";
    client
        .batch_execute(&format!(
            // Autovacuum would analyse at a moment of its own choice.
            "alter table fencepost.live set (autovacuum_enabled = off);
            insert into fencepost.namespace (name) values ('default');
            insert into fencepost.route (namespace_id, task_queue, task_type)
            select 1, 'q' || n, 't' from generate_series(1, {ROUTES}) as n;
            insert into fencepost.task (id, origin, enqueued_at, route_id, content_type, payload)
            select {id}, n, now(), n % {ROUTES} + 1, 'text/plain', 'x'
            from generate_series(1, {tasks} * 2) as n;
            insert into fencepost.outcome (id, ended_at, attempt, state)
            select {id}, now(), 0, 1 from generate_series({tasks} + 1, {tasks} * 2) as n;
            insert into fencepost.live (id, route_id, priority, visible_after, hold)
            select
                {id}, n % {ROUTES} + 1, n / {ROUTES} % 4,
                now() + case when n > {due} and n / 80 % 2 = 0 then 1 else -1 end * (n % 1000 + 1) * interval '1 minute',
                case when n > {due} and n / 80 % 2 = 1 then 1 else 0 end
            from generate_series(1, {tasks}) as n"
        ))
        .await
        .unwrap();
}

/// A statement, its arguments, and how its plan may differ from the others'.
struct Hot {
    name: &'static str,
    text: &'static str,
    arguments: String,
    /// Walks an index that holds nothing but what it looks for, without a condition.
    walks: Option<&'static str>,
}

fn hot_statements(dispatcher: i64, tokens: &[Token]) -> Vec<Hot> {
    let count = tokens.len();
    let ids = array(tokens.iter().map(|token| token.id));
    let epochs = array(tokens.iter().map(|token| token.epoch));
    let fences = array(tokens.iter().map(|token| token.fence));
    let (nulls, id) = (repeat("null", count), tokens[0].id);
    macro_rules! hot {
        ($name:literal, $walks:expr, $($arguments:tt)*) => {
            Hot {
                name: $name,
                text: include_str!(concat!("../../sql/", $name, ".sql")),
                arguments: format!($($arguments)*),
                walks: $walks,
            }
        };
    }
    let overdue = Some("live_dispatcher");
    vec![
        hot!(
            "claim_tasks",
            None,
            "{dispatcher}, 1, {}, 70000, 60000, 30000, {}",
            claim_arguments(),
            unlimited(80)
        ),
        hot!("read_bodies", None, "{ids}"),
        hot!(
            "adopt_tasks",
            None,
            "{ids}, {epochs}, {fences}, {dispatcher}, 70000, 60000, 1, '{{}}'::bigint[]"
        ),
        hot!(
            "complete_tasks",
            None,
            "{ids}, {epochs}, {fences}, {nulls}, {nulls}, {nulls}"
        ),
        hot!(
            "return_tasks",
            None,
            "{ids}, {epochs}, {fences}, {nulls}, {}, {nulls}, {nulls}, {nulls}, {nulls}, {nulls}, 5",
            repeat("retry", count)
        ),
        hot!(
            "look_again",
            None,
            "{ids}, {epochs}, {fences}, {}, {nulls}, {nulls}",
            repeat("true", count)
        ),
        hot!("lock_task", None, "{id}"),
        hot!("cancel_tasks", None, "{ids}, 30000, 'why', null"),
        hot!("lock_free_tasks", None, "{ids}"),
        hot!(
            "match_unfinished",
            None,
            "null, 'q1', null, null, null, '{{a}}', '{{b}}', null, now(), 0, 5000"
        ),
        hot!("find_paused_claims", overdue, "500"),
        hot!("find_due", None, "0, 0, 1000"),
        hot!("find_waiting", None, "'{{1,2,3}}', 500"),
        hot!("find_expired", Some("live_start_by"), "500"),
        hot!("lock_quotas", None, "'{{1,2}}', '{{1,3}}'"),
        hot!(
            "count_claimed",
            Some("dispatcher_pkey"),
            "'{{1,2}}', '{{1,3}}', '{{null,1970-01-01}}', '{{null,1970-01-01}}'"
        ),
        hot!(
            "take_tokens",
            None,
            "'{{1,2}}', '{{1,3}}', '{{5,5}}', '{{1000,1000}}', '{{9,9}}', array[now(), now()]"
        ),
        hot!("read_stage", None, "{id}"),
        hot!(
            "list_queues",
            Some("dispatcher_pkey"),
            "null, null, 10001, 1000, null, null, null, null, null"
        ),
        hot!("count_letters", Some("dead_letter_route"), "10000, 1000"),
        hot!("find_orphans", None, "500"),
        hot!("find_overdue", overdue, "500"),
        hot!("find_claims", None, "{dispatcher}, '{{1,2}}'"),
        hot!("find_cancelled", None, "{dispatcher}"),
        hot!("forget_dispatchers", None, ""),
        hot!("read_task", None, "{id}, true, true"),
        hot!("read_ended", None, "{ids}"),
        hot!("look_at_runs", None, "{ids}"),
        hot!("hold_members", None, "7, 500"),
        hot!("release_members", None, "7, 500"),
        hot!("lock_members", None, "7, 500"),
        hot!("settle_run", None, "7"),
        hot!("list_members", None, "7, 0, 100"),
        hot!("list_events", None, "7, 0, 100"),
        hot!(
            "list_tasks",
            None,
            "null, null, null, null, {}, 1000, 100, null, null, null, null",
            i64::MAX
        ),
    ]
}

/// Every route at every priority, each of which may give so many.
fn every_lane(quantity: i32) -> Vec<LaneRequest> {
    (1..=ROUTES)
        .flat_map(|route| {
            (0..4).map(move |priority| LaneRequest {
                route,
                ..Queue::lane(priority, quantity)
            })
        })
        .collect()
}

/// The same, as the statement takes it: seven a lane and five hundred in all.
fn claim_arguments() -> String {
    let lanes = every_lane(7);
    format!(
        "{}, {}, {}, {}, {}, {}, '{{500}}'",
        array(lanes.iter().map(|lane| lane.route)),
        array(lanes.iter().map(|lane| lane.priority)),
        repeat("7", lanes.len()),
        repeat("1970-01-01", lanes.len()),
        repeat("0", lanes.len()),
        repeat("1", lanes.len()),
    )
}

/// As many lanes without quotas and rates.
fn unlimited(lanes: usize) -> String {
    format!(
        "{0}, {0}, {1}, {1}",
        repeat("null", lanes),
        repeat("false", lanes)
    )
}

/// A claim of so many from one lane, from a mark on.
fn execute_claim(dispatcher: i64, (at, id): (String, TaskId), quantity: i32) -> String {
    format!(
        "execute claim_tasks(
            {dispatcher}, 1, '{{1}}', '{{1}}', '{{{quantity}}}', '{{\"{at}\"}}', '{{{id}}}', '{{1}}', '{{{quantity}}}', 1, 1,
            30000, '{{null}}', '{{null}}', '{{false}}', '{{false}}'
        )"
    )
}

fn judge(hot: &Hot, plan: &Plan, how: &str) {
    let name = hot.name;
    let fail = |what: &str| panic!("{name} ({how}): {what}\n{}", plan.text());
    for (node, above) in plan.nodes() {
        let kind = node["Node Type"].as_str().unwrap();
        let large = large_table(node);
        if kind == "Seq Scan" && large.is_some() {
            fail("a large table is read as a whole");
        }
        if ["Hash Join", "Merge Join"].contains(&kind) {
            fail("a join does not go row by row");
        }
        if conditions(node).contains("hashed SubPlan") {
            fail("a subquery is read as a whole");
        }
        let index = node["Index Name"].as_str();
        if index.is_some()
            && (large.is_some() || kind == "Bitmap Index Scan")
            && node["Index Cond"].is_null()
            && index != hot.walks
        {
            fail("an index of a large table is walked without a condition");
        }
        // Before rows are locked all of them would be read; sorting the ids that were given is another matter.
        let locks = above.iter().any(|node| node["Node Type"] == "LockRows");
        if kind == "Sort" && locks && !["cancel_tasks", "lock_free_tasks"].contains(&name) {
            fail("rows are sorted before they are locked");
        }
    }
    if name == "claim_tasks" {
        let nodes = plan.nodes();
        let scan = nodes
            .iter()
            .find(|(node, _)| node["Index Name"] == "live_claim");
        let Some((scan, _)) = scan else {
            return fail("the claim index is not used");
        };
        let condition = scan["Index Cond"].as_str().unwrap();
        for column in [
            "route_id",
            "priority",
            "visible_after <=",
            "ROW(visible_after, id) >",
        ] {
            assert!(
                condition.contains(column),
                "{column} is no index condition: {condition}"
            );
        }
        let by_tid = nodes
            .iter()
            .any(|(node, _)| node["Node Type"] == "Tid Scan");
        assert!(
            by_tid,
            "the update does not go by row address: {}",
            plan.text()
        );
    }
}

async fn judge_all(client: &Client, hot: &[Hot], how: &str) {
    for mode in ["force_custom_plan", "force_generic_plan"] {
        let set = format!("set plan_cache_mode = {mode}");
        client.batch_execute(&set).await.unwrap();
        for statement in hot {
            let execute = match statement.arguments.as_str() {
                "" => format!("execute {}", statement.name),
                arguments => format!("execute {}({arguments})", statement.name),
            };
            let plan = Plan::of(client, &execute).await;
            judge(statement, &plan, &format!("{how}, {mode}"));
        }
    }
}

#[tokio::test]
async fn hot_statements_look_rows_up_whatever_the_statistics_say() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    fill(&client, 100_000, 40_000).await;
    let request = queue.request(every_lane(20), vec![2000]);
    let tokens = queue.claim_for(&client, queue.dispatcher, &request).await;
    assert!(tokens.len() >= 500, "{}", tokens.len());
    let hot = hot_statements(queue.dispatcher, &tokens[..500]);
    for statement in &hot {
        prepare(&client, statement.name, statement.text).await;
    }
    judge_all(&client, &hot, "never analysed").await;

    // To the planner a queue that was analysed while nothing ran has no claimed rows, and the reverse.
    let analyse = "analyze fencepost.live, fencepost.task, fencepost.outcome, fencepost.failure, fencepost.dispatcher";
    client.batch_execute(analyse).await.unwrap();
    judge_all(&client, &hot, "analysed with claims").await;
    client
        .batch_execute(
            "update fencepost.live
            set state = 0, dispatcher = null, sweep = null, claimed_at = null, deadline = null
            where state = 1",
        )
        .await
        .unwrap();
    client.batch_execute(analyse).await.unwrap();
    let request = queue.request(every_lane(20), vec![2000]);
    let tokens = queue.claim_for(&client, queue.dispatcher, &request).await;
    let hot = hot_statements(queue.dispatcher, &tokens[..500]);
    judge_all(&client, &hot, "analysed without claims").await;
    // One report instead of five hundred.
    let hot = hot_statements(queue.dispatcher, &tokens[..1]);
    judge_all(&client, &hot, "one row").await;

    // A queue that was analysed while it was empty.
    client
        .batch_execute(
            "create temporary table kept as select * from fencepost.live;
            truncate fencepost.live",
        )
        .await
        .unwrap();
    client
        .batch_execute("vacuum analyze fencepost.live")
        .await
        .unwrap();
    client
        .batch_execute("insert into fencepost.live select * from kept")
        .await
        .unwrap();
    let hot = hot_statements(queue.dispatcher, &tokens[..500]);
    judge_all(&client, &hot, "analysed while empty").await;
}

#[tokio::test]
async fn plans_that_were_made_while_nothing_was_there_look_rows_up_later() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let analyse =
        "vacuum analyze fencepost.live, fencepost.task, fencepost.outcome, fencepost.failure";
    client.batch_execute(analyse).await.unwrap();
    let nothing = Token {
        id: 1,
        epoch: 0,
        fence: 1,
    };
    let settles = [
        "read_bodies",
        "adopt_tasks",
        "complete_tasks",
        "return_tasks",
        "look_again",
        "lock_task",
        "cancel_tasks",
    ];
    for statement in hot_statements(queue.dispatcher, &[nothing]) {
        if settles.contains(&statement.name) {
            prepare(&client, statement.name, statement.text).await;
            let execute = format!("execute {}({})", statement.name, statement.arguments);
            let plan = Plan::of(&client, &execute).await;
            judge(&statement, &plan, "planned while empty");
        }
    }
}

/// Pages read by a claim of 500 and by reading, completing and returning what it took.
async fn pages(queue: &Queue, client: &Client) -> Vec<(&'static str, u64)> {
    let hot = |tokens: &[Token]| hot_statements(queue.dispatcher, tokens);
    let request = queue.request(every_lane(7), vec![500]);
    let tokens = queue.claim_for(client, queue.dispatcher, &request).await;
    assert_eq!(tokens.len(), 500);
    let mut read = Vec::new();
    for statement in hot(&tokens) {
        let measured = [
            "claim_tasks",
            "read_bodies",
            "complete_tasks",
            "return_tasks",
            "look_again",
        ];
        if measured.contains(&statement.name) {
            let execute = format!("execute {}({})", statement.name, statement.arguments);
            read.push((
                statement.name,
                Plan::measure(client, &execute).await.buffers(),
            ));
        }
    }
    read
}

#[tokio::test]
async fn a_claim_and_its_settlement_read_a_few_pages_a_task_whatever_waits() {
    let mut by_backlog = Vec::new();
    for tasks in [20_000, 100_000] {
        let queue = Queue::new().await;
        let client = queue.client().await;
        fill(&client, tasks, 8_000).await;
        for statement in hot_statements(
            queue.dispatcher,
            &[Token {
                id: 1,
                epoch: 0,
                fence: 1,
            }],
        ) {
            prepare(&client, statement.name, statement.text).await;
        }
        by_backlog.push(pages(&queue, &client).await);
    }
    for ((name, few), (_, many)) in by_backlog[0].iter().zip(&by_backlog[1]) {
        // 500 tasks: some pages each for the row, its indexes and its body.
        assert!(*many < 20 * 500, "{name} reads {many} pages");
        // An index may be one level higher.
        assert!(*many < few * 2, "{name} reads {few} pages, then {many}");
    }
}

#[tokio::test]
async fn a_lane_of_which_nothing_is_due_costs_a_claim_one_look() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    fill(&client, 20_000, 20_000).await;
    queue
        .execute(
            "update fencepost.live
            set
                route_id = 1,
                priority = 1,
                visible_after = now() + interval '1 hour',
                hold = case when id % 2 = 0 then 1 else 0 end",
        )
        .await;
    // The entries of the due versions go, so that what is measured are the rows as they are.
    client.batch_execute("vacuum fencepost.live").await.unwrap();
    prepare(&client, "claim_tasks", CLAIM_TASKS).await;
    let execute = execute_claim(queue.dispatcher, ("1970-01-01".into(), 0), 500);
    // The first run of a session also reads the catalogue.
    Plan::measure(&client, &execute).await;
    let plan = Plan::measure(&client, &execute).await;
    assert!(plan.rows() < 1.0);
    assert!(plan.buffers() < 10, "{}", plan.text());
}

#[tokio::test]
async fn the_low_water_mark_spares_a_claim_the_dead_rows_under_an_open_snapshot() {
    const DEAD: i32 = 20_000;
    let queue = Queue::new().await;
    let (mut reader, client) = (queue.client().await, queue.client().await);
    queue.enqueue(DEAD).await;
    let snapshot = reader
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    // Our own sessions may not idle in a transaction for long; somebody else's may.
    snapshot
        .batch_execute(
            "set local idle_in_transaction_session_timeout = 0; select from fencepost.live limit 1",
        )
        .await
        .unwrap();
    let mut mark = Queue::lane(1, 2000).low;
    for _ in 0..DEAD / 2000 {
        let mut lane = Queue::lane(1, 2000);
        lane.low = mark;
        let request = queue.request(vec![lane], vec![2000]);
        let claims = claim::claim(&client, queue.dispatcher, &request, DEADLINES)
            .await
            .unwrap()
            .claims;
        let ends = claims
            .iter()
            .map(|claim| (claim.visible_after, claim.token.id));
        mark = ends.max().unwrap();
        let batch: Vec<_> = claims.iter().map(|claim| success(claim.token)).collect();
        assert_eq!(settle::complete(&client, &batch).await.unwrap().len(), 2000);
    }
    let waiting: Vec<TaskId> = queue.enqueue(100).await;
    prepare(&client, "claim_tasks", CLAIM_TASKS).await;
    let claim_from = async |mark| {
        let plan = Plan::measure(&client, &execute_claim(queue.dispatcher, mark, 1)).await;
        assert!(plan.rows() > 0.0);
        plan.buffers()
    };
    let without = claim_from(("1970-01-01".into(), 0)).await;
    let with = claim_from((mark.0.to_rfc3339(), mark.1)).await;
    assert!(
        with * 10 <= without,
        "{with} pages with the mark, {without} without"
    );
    assert!(waiting[0] > mark.1);
    snapshot.rollback().await.unwrap();
}

#[tokio::test]
async fn a_list_costs_what_it_shows_however_many_tenants_there_are() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    let fill = "insert into fencepost.namespace (name) select 't' || n from generate_series(1, 3000) as n;
        insert into fencepost.route (namespace_id, task_queue, task_type)
        select namespace_id, 'q', 't' from fencepost.namespace where name ~ '^t';
        insert into fencepost.task (id, origin, enqueued_at, route_id, content_type, payload)
        select (fencepost.id_ms(now()) << 22) + route_id, route_id, now(), route_id, 'text/plain', 'x'
        from fencepost.route";
    client.batch_execute(fill).await.unwrap();
    macro_rules! prepare_list {
        ($name:literal) => {
            let text = include_str!(concat!("../../sql/", $name, ".sql"));
            prepare(&client, $name, text).await;
        };
    }
    prepare_list!("list_tasks");
    prepare_list!("list_queues");
    prepare_list!("list_namespaces");
    let last = i64::MAX;
    for how in ["never analysed", "analysed"] {
        let tasks = |namespace| {
            format!(
                "list_tasks({namespace}, null, null, null, {last}, 500, 10, null, null, null, null)"
            )
        };
        for (list, answers, most) in [
            (tasks("null"), 10.0, 10_000.0),
            (tasks("'none'"), 1.0, 10_000.0),
            (
                "list_queues(null, null, 10001, 10, null, null, null, null, null)".into(),
                10.0,
                1000.0,
            ),
            (
                "list_queues('t7', null, 10001, 10, null, null, null, null, null)".into(),
                1.0,
                1000.0,
            ),
            (
                "list_queues(null, null, 10001, 2, '{7,9}', null, null, null, null)".into(),
                2.0,
                1000.0,
            ),
            (
                "list_queues('t7', 'other', 10001, 2, null, null, null, null, null)".into(),
                0.0,
                1000.0,
            ),
            (
                "list_queues(null, null, 10001, 10, null, 't5', 'q', 't', '')".into(),
                10.0,
                1000.0,
            ),
            ("list_namespaces(null, 10, null)".into(), 10.0, 1000.0),
            ("list_namespaces(null, 10, 't5')".into(), 10.0, 1000.0),
            ("list_namespaces('t7', 10, null)".into(), 1.0, 1000.0),
        ] {
            let plan = Plan::measure(&client, &format!("execute {list}")).await;
            let (rows, work, text) = (plan.rows(), plan.work(), plan.text());
            assert!((rows - answers).abs() < 0.5, "{list} ({how}): {text}");
            assert!(work < most, "{list} ({how}) works {work} rows: {text}");
        }
        client
            .batch_execute("analyze fencepost.namespace, fencepost.route, fencepost.task")
            .await
            .unwrap();
    }
}

/// A run with so many members of the first route, all due, and every statement that is asked of it.
async fn fill_run(client: &impl GenericClient, run: i64, members: i32) {
    client
        .batch_execute(&format!(
            "alter table fencepost.live set (autovacuum_enabled = off);
            insert into fencepost.workflow (run_id, workflow_id, namespace_id, mode) values ({run}, {run}, 1, 'all');
            insert into fencepost.live (id, route_id, visible_after, run_id)
            select n, 1, now() - interval '1 hour', {run} from generate_series(1, {members}) as n"
        ))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_hundred_thousand_held_members_cost_a_claim_nothing() {
    const MEMBERS: i32 = 100_000;
    let queue = Queue::new().await;
    let mut client = queue.client().await;
    fill_run(&client, 7, MEMBERS).await;
    queue
        .execute("update fencepost.workflow set paused = '{}'")
        .await;
    let (mut batches, grace) = (0, std::time::Duration::ZERO);
    while let Some((run, step)) = runs::look(&client, &[7]).await.unwrap().pop() {
        runs::take_step(&mut client, run, step, grace)
            .await
            .unwrap();
        batches += 1;
    }
    assert_eq!(batches, MEMBERS / 500);
    client.batch_execute("vacuum fencepost.live").await.unwrap();
    prepare(&client, "claim_tasks", CLAIM_TASKS).await;
    let execute = execute_claim(queue.dispatcher, ("1970-01-01".into(), 0), 500);
    Plan::measure(&client, &execute).await;
    let plan = Plan::measure(&client, &execute).await;
    assert!(plan.rows() < 1.0);
    assert!(plan.buffers() < 10, "{}", plan.text());
}

#[tokio::test]
async fn the_look_at_a_run_costs_the_same_however_many_members_it_has_and_had() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    fill_run(&client, 7, 10_000).await;
    let look = include_str!("../../sql/look_at_runs.sql");
    prepare(&client, "look_at_runs", look).await;
    // The entries of those that have ended stay in the index: nobody vacuums.
    for ended in [0, 5_000, 9_999] {
        let delete = format!("delete from fencepost.live where id <= {ended}");
        queue.execute(&delete).await;
        Plan::measure(&client, "execute look_at_runs('{7}')").await;
        let plan = Plan::measure(&client, "execute look_at_runs('{7}')").await;
        assert!(plan.rows() < 1.0);
        assert!(plan.buffers() < 40, "{ended}: {}", plan.text());
    }
}

#[tokio::test]
async fn the_look_at_a_run_walks_nothing_that_others_hold() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    fill_run(&client, 7, 10).await;
    client
        .batch_execute("vacuum analyze fencepost.live")
        .await
        .unwrap();
    let look = include_str!("../../sql/look_at_runs.sql");
    prepare(&client, "look_at_runs", look).await;
    // The plan is made while nothing is held.
    Plan::measure(&client, "execute look_at_runs('{7}')").await;
    let hold = "insert into fencepost.live (id, route_id, visible_after, key_hash, hold)
        select n, 1, now(), n, 2 from generate_series(1001, 21000) as n";
    client.batch_execute(hold).await.unwrap();
    let plan = Plan::measure(&client, "execute look_at_runs('{7}')").await;
    assert!(plan.buffers() < 40, "{}", plan.text());
}

#[tokio::test]
async fn a_look_at_a_key_reads_no_other_one_that_is_stopped() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    queue.enqueue(1).await;
    let stop = |from: i32, to: i32| {
        format!(
            "insert into fencepost.stopped_key (letter_id, key_hash, stopped_at)
            select n, n, now() from generate_series({from}, {to}) as n"
        )
    };
    let setup = format!(
        "alter table fencepost.stopped_key set (autovacuum_enabled = off);
        update fencepost.live set key_hash = -5, hold = 2;
        {}",
        stop(1, 3)
    );
    client.batch_execute(&setup).await.unwrap();
    let analyse = "vacuum analyze fencepost.stopped_key, fencepost.live";
    client.batch_execute(analyse).await.unwrap();
    prepare(
        &client,
        "walk_keys",
        include_str!("../../sql/walk_keys.sql"),
    )
    .await;
    let looks = [
        "select * from fencepost.look_at_keys('{-5}', '{1}', '{-5}')",
        "select * from fencepost.free_keys('{-5}')",
        "execute walk_keys(-10, 10)",
    ];
    // The plans are made while few keys are stopped.
    for look in looks {
        Plan::measure(&client, look).await;
    }
    client.batch_execute(&stop(4, 20_000)).await.unwrap();
    for look in looks {
        let plan = Plan::measure(&client, look).await;
        assert!(plan.buffers() < 60, "{look}: {}", plan.text());
    }
}

#[tokio::test]
async fn a_hundred_thousand_tasks_behind_a_key_cost_neither_claims_nor_looks_anything() {
    const TASKS: i32 = 100_000;
    let queue = Queue::new().await;
    let client = queue.client().await;
    // Half of them behind one key, the others behind a thousand.
    client
        .batch_execute(&format!(
            "alter table fencepost.live set (autovacuum_enabled = off);
            select fencepost.declare_queue('q', 't');
            insert into fencepost.live (id, route_id, priority, visible_after, hold, key_hash)
            select
                n, 1, 1, now() - interval '1 day', case when n % 2 = 0 and n > 2 then 2 when n > 2001 then 2 else 0 end,
                case when n % 2 = 0 then 7 else n % 2000 end
            from generate_series(1, {TASKS}) as n;
            insert into fencepost.live (id, route_id, priority, visible_after)
            select {TASKS} + n, 1, 1, now() - interval '1 minute' from generate_series(1, 100) as n"
        ))
        .await
        .unwrap();
    let vacuum = "vacuum analyze fencepost.live";
    client.batch_execute(vacuum).await.unwrap();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        client
            .batch_execute(&format!("set plan_cache_mode = {mode}"))
            .await
            .unwrap();
        prepare(&client, "claim_tasks", CLAIM_TASKS).await;
        prepare(
            &client,
            "walk_keys",
            include_str!("../../sql/walk_keys.sql"),
        )
        .await;
        prepare(
            &client,
            "free_keys",
            include_str!("../../sql/free_keys.sql"),
        )
        .await;
        prepare(
            &client,
            "find_key_looks",
            include_str!("../../sql/find_key_looks.sql"),
        )
        .await;
        // What is let go of the keys is claimed before the others, and nothing behind it is looked at.
        let claim = execute_claim(queue.dispatcher, ("1970-01-01".into(), 0), 500);
        let walk = "execute walk_keys(-9223372036854775808, 500)".to_owned();
        let free = "execute free_keys('{7,1,3,5,9}', null)".to_owned();
        let looks = "execute find_key_looks(500, now(), 1)".to_owned();
        for (execute, most) in [(claim, 30_000), (walk, 8_000), (free, 150), (looks, 10)] {
            Plan::measure(&client, &execute).await;
            let plan = Plan::measure(&client, &execute).await;
            assert!(plan.buffers() < most, "{mode}, {execute}: {}", plan.text());
        }
        client.batch_execute("deallocate all").await.unwrap();
    }
    // An enqueue behind the long line of one key, and one of a key that is free.
    for name in ["long", "free"] {
        queue
            .execute(&format!(
                "update fencepost.live set key_hash = fencepost.key_hash(1, '{name}') where key_hash = 7 and '{name}' = 'long'"
            ))
            .await;
        let enqueue =
            format!("select * from fencepost.enqueue('q', 't', concurrency_key => '{name}')");
        Plan::measure(&client, &enqueue).await;
        let plan = Plan::measure(&client, &enqueue).await;
        assert!(plan.buffers() < 200, "{name}: {}", plan.text());
    }
}
