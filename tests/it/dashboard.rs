//! The dashboard in a real browser: every page with and without something to show, by mouse and by keyboard.

use std::time::Duration;

use fencepost::proto::worker::Register;
use serde_json::{Value, json};

use crate::support::browser::key;
use crate::support::scripted_worker::register;
use crate::support::{Browser, Operator, Replica, ScriptedWorker, TestDb, eventually, letters};

const STEP: Duration = Duration::from_secs(20);

/// A name that would run, were it ever taken for markup.
const NASTY: &str = "<img src=x onerror=\"window.hit=1\">";

const QUICK: &[(&str, &str)] = &[("REPLICA__BEAT", "200ms"), ("SERVER__NAME", "alpha")];

async fn replica(db: &TestDb, more: &[(&str, &str)]) -> Replica {
    let settings: Vec<_> = QUICK.iter().chain(more).copied().collect();
    Replica::start(&db.url(), &settings).await
}

/// Nothing that somebody named has become markup, or run.
async fn assert_text_only(browser: &Browser) {
    let made = "document.querySelectorAll('main img, dialog img, main script').length";
    assert_eq!(browser.value(made).await, 0, "{}", browser.text().await);
    assert_eq!(browser.value("window.hit === undefined").await, true);
}

#[tokio::test]
async fn every_page_says_what_to_do_next_where_there_is_nothing() {
    let db = TestDb::new().await;
    let replica = replica(&db, &[]).await;
    let Some(browser) = Browser::open(&replica).await else {
        return;
    };
    browser.sees("Live").await;
    for (page, nothing, next) in [
        ("queues", "No queue yet.", "fencepost enqueue --queue"),
        ("tasks", "No task yet.", "fencepost enqueue --queue"),
        (
            "tasks?state=failed",
            "No task matches.",
            "look at all tasks",
        ),
        ("letters", "No dead letters.", "redrives or discards it"),
        (
            "letters?cause=lost",
            "No dead letter matches.",
            "Look at all of them",
        ),
        (
            "workers",
            "No worker is connected.",
            "fencepost worker --connect",
        ),
        ("tenants", "No namespace yet.", "fencepost namespace set"),
        ("workflows", "No workflow yet.", "fencepost workflow start"),
        (
            "workflows?state=done",
            "No workflow matches.",
            "Look at all of them",
        ),
        ("pauses", "Nothing is paused.", "with the form below"),
        (
            "unserved",
            "Everything with due tasks is served.",
            "fencepost worker --connect",
        ),
    ] {
        browser.show(page).await;
        browser.sees(nothing).await;
        browser.sees(next).await;
        browser
            .picture(&format!("empty-{}", page.replace('?', "-")))
            .await;
    }
    browser.show("replicas").await;
    browser.sees("alpha (answers here)").await;
    browser.close().await;
}

#[tokio::test]
async fn every_page_shows_what_there_is_and_names_stay_text() {
    let db = TestDb::new().await;
    let replica = replica(
        &db,
        &[
            ("REPLICA__DEAD_AFTER", "2s"),
            ("WORKERS__RECONNECT_GRACE", "500ms"),
        ],
    )
    .await;
    let operator = Operator::of(&replica);
    let named = |rest: Value| {
        let mut task =
            json!({"task_queue": "nasty", "task_type": NASTY, "payload": {"secret": NASTY}});
        task.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        task.to_string()
    };
    let body = named(
        json!({"namespace": NASTY, "dispatch_key": NASTY, "concurrency_key": NASTY, "labels": {NASTY: NASTY}}),
    );
    let (status, task) = operator.call("POST", "/v1/tasks", &body).await;
    assert_eq!(status, 201, "{task}");
    let id = task["task_id"].as_str().unwrap().to_owned();
    let letter = letters::dead(
        &db.pool(),
        &format!("namespace => '{NASTY}', payload => '{{\"a\": 1}}'"),
    )
    .await;
    operator
        .change(
            "POST",
            "/v1/pause",
            &json!({"task_queue": NASTY, "reason": NASTY, "by": NASTY}).to_string(),
        )
        .await;
    operator
        .change(
            "PUT",
            "/v1/namespaces/quoted",
            r#"{"max_in_flight": 40, "weight": 3, "rate": "5/s"}"#,
        )
        .await;
    let members = json!({"name": NASTY, "members": [
        {"task_queue": "q", "task_type": NASTY, "delay": "1h"}, {"task_queue": "q", "task_type": "t"}]});
    let (status, flow) = operator
        .call("POST", "/v1/workflows", &members.to_string())
        .await;
    assert_eq!(status, 201, "{flow}");
    let flow = flow["workflow_id"].as_str().unwrap().to_owned();
    let register = Register {
        identity: NASTY.into(),
        node: NASTY.into(),
        slots: 4,
        task_types: vec!["other".into()],
        ..register()
    };
    let worker = ScriptedWorker::connect_as(&replica.url(), register).await;
    operator
        .worker(NASTY, |worker| worker["state"] == "ready")
        .await;
    eventually(STEP, async || {
        let unserved = operator.unserved().await;
        unserved
            .iter()
            .any(|one| one["since"].is_string())
            .then_some(())
    })
    .await;

    let Some(browser) = Browser::open(&replica).await else {
        return;
    };
    for (page, seen) in [
        (
            "queues".to_owned(),
            vec!["Depth", "Rates", "Latency", NASTY, "unserved", "In"],
        ),
        (
            "tasks".to_owned(),
            vec![NASTY, id.as_str(), "ready", "failed", "That is all."],
        ),
        (
            format!("task/{id}"),
            vec![
                NASTY,
                "Why",
                "Enqueued",
                "Dispatch key",
                "payloads",
                "Waits",
            ],
        ),
        (
            format!("task/{letter}"),
            vec!["oops", "it broke", "Attempt 1", "Ended: failed"],
        ),
        ("letters".to_owned(), vec![NASTY, "oops"]),
        (
            format!("letter/{letter}"),
            vec!["Dead letter", "oops: it broke", "Redrive", "Attempt 1"],
        ),
        ("workers".to_owned(), vec![NASTY, "0/4", "1 connected"]),
        ("tenants".to_owned(), vec![NASTY, "0 of 40", "5/s, burst"]),
        ("workflows".to_owned(), vec![NASTY, "running"]),
        (
            format!("workflow/{flow}"),
            vec![NASTY, "2 members", "member 1", "staged"],
        ),
        ("pauses".to_owned(), vec![NASTY, "Resume"]),
        ("unserved".to_owned(), vec![NASTY, "no live workers"]),
        ("replicas".to_owned(), vec!["alpha", "up"]),
    ] {
        browser.show(&page).await;
        for text in seen {
            // The word of the payload's size stands for it until it is asked for.
            let text = if text == "payloads" {
                "Show payload"
            } else {
                text
            };
            browser.sees(text).await;
        }
        assert_text_only(&browser).await;
        browser.picture(page.split('/').next().unwrap()).await;
    }

    // What is hidden stays hidden, and the page says so in the words of the problem.
    browser.show(&format!("task/{id}")).await;
    assert_eq!(browser.errors().await, Vec::<String>::new());
    browser.click("Show payload").await;
    browser.sees("server.show_payloads = true").await;
    assert!(!browser.text().await.contains("secret"));
    let refused = browser.errors().await;
    assert!(
        refused.len() == 1 && refused[0].contains("403"),
        "{refused:?}"
    );
    // A mistake in a filter is the sentence of its problem as well.
    browser.show("letters?dead_before=soon").await;
    browser.sees("FP-0").await;
    assert_eq!(browser.errors().await.len(), 1);
    drop(worker);
    browser.close().await;
}

#[tokio::test]
async fn it_goes_by_the_keyboard_and_in_the_dark() {
    let db = TestDb::new().await;
    let replica = replica(&db, &[]).await;
    let Some(browser) = Browser::open(&replica).await else {
        return;
    };
    let operator = Operator::of(&replica);
    let tasks = json!([
        {"namespace": "shop", "task_queue": "q", "task_type": "first"},
        {"namespace": "shop", "task_queue": "q", "task_type": "second"},
        {"namespace": "other", "task_queue": "q", "task_type": "third"},
    ]);
    let (_, made) = operator.call("POST", "/v1/tasks", &tasks.to_string()).await;
    let id = |index: usize| made[index]["task_id"].as_str().unwrap().to_owned();
    browser.show("tasks").await;
    browser.sees("third").await;

    // The skip link is the first stop, is seen when it has the focus, and leads past the navigation.
    browser.reload().await;
    browser.loaded("tasks").await;
    browser.types(key::TAB).await;
    assert_eq!(browser.value("document.activeElement.id").await, "skip");
    assert_eq!(
        browser
            .value("document.activeElement.getBoundingClientRect().left >= 0")
            .await,
        true
    );
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.value(outline).await, "solid");
    browser.types(key::ENTER).await;
    assert_eq!(browser.value("document.activeElement.id").await, "main");

    // A slash leads to the filter; in the filter it is a slash.
    browser.types("/").await;
    assert_eq!(
        browser.value("document.activeElement.name").await,
        "namespace"
    );
    browser.types("sh/op").await;
    assert_eq!(browser.value("document.activeElement.value").await, "sh/op");
    browser.run("document.activeElement.value = ''").await;
    browser.types(&format!("shop{}", key::ENTER)).await;
    browser.loaded("tasks?namespace=shop").await;
    browser
        .until("document.querySelectorAll('tbody tr').length === 2")
        .await;

    // Arrows walk the rows, and Enter opens one.
    browser
        .run("document.querySelector('tbody tr').focus()")
        .await;
    let row = "document.activeElement.dataset.key";
    assert_eq!(browser.value(row).await, id(1).as_str());
    browser.types(key::DOWN).await;
    assert_eq!(browser.value(row).await, id(0).as_str());
    browser.types(key::DOWN).await;
    assert_eq!(
        browser.value(row).await,
        id(0).as_str(),
        "the last one stays"
    );
    browser.types(key::HOME).await;
    assert_eq!(browser.value(row).await, id(1).as_str());
    browser.types(key::ENTER).await;
    browser.loaded(&format!("task/{}", id(1))).await;
    browser.sees("second").await;

    // Dark by the system, and by the switch, which is remembered.
    let paper = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(paper).await;
    let features =
        |scheme: &str| json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
    browser
        .command("Emulation.setEmulatedMedia", features("dark"))
        .await;
    browser.until(&format!("{paper} !== {light}")).await;
    browser.picture("dark-task").await;
    let switch = |to: &str| {
        format!(
            "const one = document.getElementById('theme'); one.value = '{to}'; one.dispatchEvent(new Event('change'))"
        )
    };
    browser.run(&switch("light")).await;
    assert_eq!(browser.value(paper).await, light);
    browser
        .command("Emulation.setEmulatedMedia", features("light"))
        .await;
    browser.run(&switch("dark")).await;
    assert_ne!(browser.value(paper).await, light);
    browser.reload().await;
    browser.loaded(&format!("task/{}", id(1))).await;
    assert_ne!(browser.value(paper).await, light);
    browser.show("queues").await;
    browser.sees("second").await;
    browser.picture("dark-queues").await;
    browser.close().await;
}

#[tokio::test]
async fn dead_letters_are_redriven_and_queues_paused_from_the_page() {
    let db = TestDb::new().await;
    let replica = replica(&db, &[("SERVER__SHOW_PAYLOADS", "true")]).await;
    let Some(browser) = Browser::open(&replica).await else {
        return;
    };
    let operator = Operator::of(&replica);
    let pool = db.pool();
    let mut dead = Vec::new();
    for number in 0..3 {
        dead.push(letters::dead(&pool, &format!("payload => '{{\"order\": {number}}}'")).await);
    }
    let redriven = async |id: i64| {
        let letter = operator.get(&format!("/v1/dead-letters/{id}")).await;
        letter["redriven_as"].as_str().map(str::to_owned)
    };

    // One that is chosen; a question comes first, and a no is a no.
    browser.show("letters").await;
    browser.click(&format!("Choose {}", dead[0])).await;
    browser.click("Redrive chosen (1)").await;
    browser.sees("Redrive 1 dead letter?").await;
    browser.click("Leave it").await;
    assert_eq!(redriven(dead[0]).await, None);
    browser.click("Redrive chosen (1)").await;
    browser.click("Redrive").await;
    browser.sees("Redriven: 1.").await;
    assert!(redriven(dead[0]).await.is_some());

    // All the others: counted first, then driven, with progress.
    browser.show("letters?redriven=false").await;
    browser.click("Redrive all that match…").await;
    browser.sees("Redrive 2 dead letters?").await;
    browser.sees("Exactly 2 letters match now.").await;
    browser.picture("redrive").await;
    assert_eq!(redriven(dead[1]).await, None);
    browser.click("Redrive them").await;
    browser.sees("2 of 2 redriven").await;
    browser.sees("done").await;
    let task = redriven(dead[2]).await.unwrap();

    // What it carries is shown on ask.
    browser.show(&format!("task/{task}")).await;
    browser.sees(&format!("{}", dead[2])).await;
    assert!(!browser.text().await.contains("\"order\""));
    browser.click("Show payload").await;
    browser.sees("\"order\": 2").await;
    browser.picture("payload").await;

    // Pause the queue and let it go on.
    browser.show("queues").await;
    browser
        .click("Pause namespace default, queue q, type t")
        .await;
    browser.enters("reason", "looking into it").await;
    browser.click("Pause it").await;
    browser
        .sees("Paused: namespace default, queue q, type t.")
        .await;
    assert_eq!(
        operator.why(task.parse().unwrap()).await["verdict"],
        "paused"
    );
    // The stream tells of it.
    browser
        .sees("Paused: namespace default, queue q, type t by dashboard (looking into it).")
        .await;
    browser.show("pauses").await;
    browser.sees("looking into it").await;
    browser
        .click("Resume namespace default, queue q, type t")
        .await;
    browser.click("Resume it").await;
    browser.sees("Nothing is paused.").await;

    // Cancel a task.
    browser.show(&format!("task/{task}")).await;
    browser.click("Cancel").await;
    browser.sees(&format!("Cancel task {task}?")).await;
    browser.click("Cancel it").await;
    browser.sees("Ended: cancelled").await;
    browser.close().await;
}
