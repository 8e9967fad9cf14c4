use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::domain::route::Route;
use crate::domain::settlement::{Cause, Move};

fn route(id: i32, task_type: &str) -> Route {
    Route {
        id,
        namespace: "n".into(),
        task_queue: "q".into(),
        task_type: task_type.into(),
        ..Route::default()
    }
}

fn value(text: &str, series: &str) -> String {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in:\n{text}"))
        .trim_end_matches(".0")
        .to_owned()
}

#[test]
fn the_first_routes_keep_their_series_and_the_others_share_one() {
    let telemetry = Telemetry::default();
    for id in 1..=250 {
        telemetry.meet(&route(id, &format!("t{id}")));
    }
    // The same name on another node is the same series, whenever it comes.
    telemetry.meet(&route(300, "t7"));
    telemetry.count([7, 300, 7, 249, 250, 999], |tasks| Some(&tasks.claimed));
    let text = telemetry.print(&Now::default()).unwrap();
    let of = |n: &str, q: &str, t: &str| {
        let labels = format!("{{namespace=\"{n}\",task_queue=\"{q}\",task_type=\"{t}\"}}");
        value(&text, &format!("fencepost_tasks_claimed_total{labels}"))
    };
    assert_eq!(of("n", "q", "t7"), "3");
    assert_eq!(of("other", "other", "other"), "3");
    let series = text.matches("fencepost_tasks_claimed_total{").count();
    assert_eq!(series, SHOWN + 1);
}

#[test]
fn moves_causes_and_classes_have_counters_of_their_own() {
    let telemetry = Telemetry::default();
    telemetry.meet(&route(1, "t"));
    for how in Move::ALL {
        telemetry.count([1], |tasks| tasks.returned(how));
    }
    for cause in Cause::ALL {
        telemetry.count([1, 1], |tasks| tasks.dead(cause));
    }
    telemetry.failed(["run_timeout", "odd \"one\"", "run_timeout"]);
    let text = telemetry.print(&Now::default()).unwrap();
    let mine = "namespace=\"n\",task_queue=\"q\",task_type=\"t\"";
    let moves: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("fencepost_tasks_returned_total{"))
        .filter(|line| line.starts_with(mine) && line.ends_with(" 1"))
        .collect();
    // Those that always end their task put nothing back.
    assert_eq!(moves.len(), Move::ALL.len() - 3, "{moves:?}");
    for cause in Cause::ALL {
        let series = format!(
            "fencepost_tasks_dead_total{{{mine},cause=\"{}\"}}",
            cause.name()
        );
        assert_eq!(value(&text, &series), "2");
    }
    let failed = |class: &str| {
        let series = format!("fencepost_deliveries_failed_total{{class=\"{class}\"}}");
        value(&text, &series)
    };
    assert_eq!(failed("run_timeout"), "2");
    assert_eq!(failed("odd \\\"one\\\""), "1");
}

#[test]
fn the_largest_queues_are_shown_and_nothing_is_left_out_of_the_sum() {
    let queue = |number: i64| QueueNow {
        name: ["n".into(), "q".into(), format!("t{number}")],
        ready: number,
        oldest: Duration::from_secs(number.unsigned_abs()),
        ..QueueNow::default()
    };
    let database = DatabaseNow {
        // Each on two nodes.
        queues: (1..=250).chain(1..=250).map(queue).collect(),
        ..DatabaseNow::default()
    };
    let now = Now {
        database: Some(Arc::new(database)),
        database_age: Some(Duration::from_secs(3)),
        ..Now::default()
    };
    let text = Telemetry::default().print(&now).unwrap();
    let of = |metric: &str, n: &str, q: &str, t: &str| {
        let labels = format!("{{namespace=\"{n}\",task_queue=\"{q}\",task_type=\"{t}\"}}");
        value(&text, &format!("fencepost_{metric}{labels}"))
    };
    assert_eq!(of("tasks_ready", "n", "q", "t250"), "500");
    assert_eq!(of("tasks_ready", "n", "q", "t51"), "102");
    assert_eq!(of("tasks_ready", "other", "other", "other"), "2550");
    assert_eq!(
        of("oldest_due_age_seconds", "other", "other", "other"),
        "50"
    );
    assert_eq!(text.matches("fencepost_tasks_ready{").count(), SHOWN + 1);
    assert_eq!(value(&text, "fencepost_database_read_age_seconds"), "3");
}

#[test]
fn a_database_that_was_never_read_shows_as_that() {
    let text = Telemetry::default().print(&Now::default()).unwrap();
    assert!(
        text.contains("fencepost_database_read_age_seconds +Inf\n"),
        "{text}"
    );
    assert!(!text.contains("fencepost_tasks_ready"), "{text}");
}

#[test]
fn values_from_outside_make_no_more_series_than_there_is_room_for() {
    let telemetry = Telemetry::default();
    let classes: Vec<String> = (0..250).map(|number| format!("class {number}")).collect();
    telemetry.failed(classes.iter().map(String::as_str));
    // Those that came first keep theirs, and the others go on sharing one.
    telemetry.failed(["class 249 and more", "class 249 and more"]);
    let text = telemetry.print(&Now::default()).unwrap();
    let series = text.lines().filter_map(|line| {
        let labels = line.strip_prefix("fencepost_deliveries_failed_total{class=\"")?;
        let (class, value) = labels.split_once("\"} ")?;
        Some((class, value.parse::<u64>().unwrap()))
    });
    let series: std::collections::HashMap<&str, u64> = series.collect();
    assert_eq!(series.len(), 201);
    assert_eq!(series.values().sum::<u64>(), 252);
    assert_eq!(series[OTHER], 52);
}
