//! The plans of what operators look at again and again, over long tables.

use crate::plans::fill;
use crate::support::Queue;
use crate::support::plan::{Plan, prepare};

#[tokio::test]
async fn what_operators_watch_reads_a_bounded_part_of_long_tables() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    fill(&client, 100_000, 40_000).await;
    for (name, text) in [
        ("list_tasks", include_str!("../../sql/list_tasks.sql")),
        ("read_flow", include_str!("../../sql/read_flow.sql")),
        ("find_busy", include_str!("../../sql/find_busy_routes.sql")),
    ] {
        prepare(&client, name, text).await;
    }
    let tasks =
        |filter: &str, rest: &str| format!("list_tasks({filter}, {}, 2000, 100, {rest})", i64::MAX);
    // All of history is two hundred thousand tasks, of which a look for one reads a dozen pages.
    let looks = [
        (
            tasks("null, 'none', null, null", "null, null, null, null"),
            40_000,
        ),
        (
            tasks("null, null, null, 'failed'", "null, null, null, null"),
            40_000,
        ),
        (
            tasks("null, null, null, 'held'", "null, null, null, null"),
            40_000,
        ),
        (
            tasks("null, null, null, null", "null, 'none', null, null"),
            40_000,
        ),
        (
            tasks(
                "null, null, null, 'done'",
                "null, null, now() - '1 day'::interval, now()",
            ),
            40_000,
        ),
        (
            tasks("null, null, null, null", "'none', null, null, null"),
            100,
        ),
        ("read_flow(5000, 8, 2000)".to_owned(), 40_000),
        ("find_busy(50)".to_owned(), 1_000),
    ];
    for how in ["never analysed", "analysed"] {
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let set = format!("set plan_cache_mode = {mode}");
            client.batch_execute(&set).await.unwrap();
            for (look, most) in &looks {
                let plan = Plan::measure(&client, &format!("execute {look}")).await;
                let (pages, text) = (plan.buffers(), plan.text());
                assert!(
                    pages < *most,
                    "{look} ({how}, {mode}) reads {pages} pages: {text}"
                );
            }
        }
        let analyse = "analyze fencepost.live, fencepost.task, fencepost.outcome, fencepost.route";
        client.batch_execute(analyse).await.unwrap();
    }
}
