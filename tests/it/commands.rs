//! `fencepost enqueue`, `task` and `migrate` as people and scripts use them: the real program.

use std::process::Stdio;

use fencepost::store::migrate;
use serde_json::Value;

use crate::support::{Producers, TestDb};

const ENQUEUE: [&str; 5] = ["enqueue", "--queue", "q", "--type", "t"];

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

async fn enqueue(side: &Producers, more: &[&str], stdin: &[u8]) -> (Option<i32>, String, String) {
    let output = side.command(&[&ENQUEUE, more].concat(), stdin).await;
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

async fn payloads(side: &Producers) -> Vec<String> {
    let rows = side
        .db
        .connect()
        .await
        .query(
            "select convert_from(payload, 'UTF8') from fencepost.task order by id",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn one_task_comes_from_an_argument_a_file_or_stdin() {
    let side = Producers::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "\"from a file\"").unwrap();
    let at_file = format!("@{}", file.path().display());
    for (more, stdin) in [
        (vec!["--payload", "{\"n\":1}"], ""),
        (vec!["--payload", &at_file], ""),
        (vec!["--payload", "-"], "\"from stdin\""),
        (vec![], ""),
    ] {
        let (code, stdout, stderr) = enqueue(&side, &more, stdin.as_bytes()).await;
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        stdout.trim_end().parse::<i64>().unwrap();
    }
    let stored = payloads(&side).await;
    assert_eq!(
        stored,
        ["{\"n\": 1}", "\"from a file\"", "\"from stdin\"", "null"]
    );
    let (_, first, _) = enqueue(&side, &["--key", "k"], b"").await;
    let (code, second, said) = enqueue(&side, &["--key", "k"], b"").await;
    assert_eq!((code, &first), (Some(0), &second));
    assert!(said.contains("has this key already"), "{said}");
}

#[tokio::test]
async fn lines_are_enqueued_in_order_and_the_bad_ones_named() {
    let side = Producers::start().await;
    let mut lines: Vec<String> = (1..=2_500).map(|n| n.to_string()).collect();
    lines[6] = "nonsense".into();
    lines[1_500] = "\"\\u0000\"".into();
    lines[9] = "  ".into();
    let input = lines.join("\n");
    let more = ["--lines", "--key", "import", "--output", "json"];
    let (code, stdout, stderr) = enqueue(&side, &more, input.as_bytes()).await;
    assert_eq!(code, Some(2), "{stderr}");
    let said: Vec<&str> = stderr.lines().collect();
    assert_eq!(said.len(), 3, "{stderr}");
    assert!(
        said[0].starts_with("fencepost: line 7: payload is not JSON"),
        "{stderr}"
    );
    assert!(
        said[0].ends_with("[FP-003 invalid_json, field payload]"),
        "{stderr}"
    );
    assert!(said[1].starts_with("fencepost: line 1501: "), "{stderr}");
    assert_eq!(
        said[2],
        "fencepost: 2497 enqueued, 0 had been before, 2 refused"
    );
    let views: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<u64> = views
        .iter()
        .map(|view| view["line"].as_u64().unwrap())
        .collect();
    let good: Vec<u64> = (1..=2_500)
        .filter(|n| ![7, 10, 1_501].contains(n))
        .collect();
    assert_eq!(numbers, good);
    let stored: Vec<u64> = payloads(&side)
        .await
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    assert_eq!(stored, good);

    // Corrected and sent again, only what was missing is new.
    lines[6] = "7".into();
    lines[1_500] = "1501".into();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines.join("\r\n")).unwrap();
    let at_file = format!("@{}", file.path().display());
    let more = ["--lines", "--key", "import", "--payload", &at_file];
    let (code, stdout, stderr) = enqueue(&side, &more, b"").await;
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(
        stderr,
        "fencepost: 2 enqueued, 2497 had been before, 0 refused\n"
    );
    assert_eq!(stdout.lines().count(), 2_499);
}

#[tokio::test]
async fn what_is_wrong_with_every_line_is_said_once() {
    let side = Producers::start().await;
    let (code, stdout, stderr) =
        enqueue(&side, &["--lines", "--priority", "9"], b"1\n2\n3\n").await;
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("lines 1 to 3 "), "{stderr}");
    assert!(
        stderr.contains("[FP-006 invalid_priority, field priority]"),
        "{stderr}"
    );
    assert_eq!(payloads(&side).await.len(), 0);
}

#[tokio::test]
async fn a_waiting_program_prints_the_result_and_tells_the_end_by_its_exit_code() {
    let side = Producers::start().await;
    for (state, result, code, stdout, said) in [
        (1, Some("{\"sum\": 3}"), 0, "{\"sum\": 3}\n", ""),
        (2, None, 1, "", "failed: boom"),
        (3, None, 1, "", "cancelled"),
    ] {
        let ending = async {
            side.somebody_waits().await;
            let client = side.db.connect().await;
            let id: i64 = client
                .query_one("select id from fencepost.live", &[])
                .await
                .unwrap()
                .get(0);
            side.end(id, state, result).await;
        };
        let (output, ()) =
            tokio::join!(enqueue(&side, &["--wait", "--timeout", "60s"], b""), ending);
        assert_eq!(
            (output.0, output.1.as_str()),
            (Some(code), stdout),
            "{output:?}"
        );
        assert!(output.2.contains(said), "{output:?}");
    }
    let (code, stdout, stderr) = enqueue(&side, &["--wait", "--timeout", "50ms"], b"").await;
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("has not ended in time"), "{stderr}");
}

#[tokio::test]
async fn tasks_are_shown_and_cancelled() {
    let side = Producers::start().await;
    let (_, id, _) = enqueue(&side, &["--payload", "[1]", "--label", "who=me"], b"").await;
    let id = id.trim_end();
    let shown = side.command(&["task", "show", id, "--payload"], b"").await;
    let shown = text(shown.stdout);
    for part in [id, "ready", "[1]", "{\"who\": \"me\"}"] {
        assert!(shown.contains(part), "{shown}");
    }
    let shown = side
        .command(&["task", "show", id, "--payload", "--output", "json"], b"")
        .await;
    let view: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(
        (&view["task_id"], &view["payload"][0]),
        (&id.into(), &1.into())
    );

    let cancel = ["task", "cancel", "1", id, "--output", "json"];
    let cancelled = side.command(&cancel, b"").await;
    assert_eq!(cancelled.status.code(), Some(1));
    assert!(text(cancelled.stderr).contains("there is no task 1."));
    let views: Value = serde_json::from_slice(&cancelled.stdout).unwrap();
    assert_eq!(
        views,
        serde_json::json!([{"task_id": id, "state": "cancelled"}])
    );
}

#[tokio::test]
async fn a_reader_that_hangs_up_is_no_failure() {
    let side = Producers::start().await;
    let input = "1\n".repeat(1_000);
    let (code, _, stderr) = enqueue(&side, &["--lines"], input.as_bytes()).await;
    assert_eq!(code, Some(0), "{stderr}");
    for args in [
        vec!["task", "list", "--limit", "1000", "--output", "json"],
        vec!["task", "list", "--limit", "1000"],
        vec!["migrate", "--sql"],
        vec!["--help"],
        vec!["version"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(&args)
            .env("DATABASE_URL", side.db.url())
            .stdin(Stdio::null())
            .stdout(writer)
            .output()
            .await
            .unwrap();
        assert_eq!(
            (output.status.code(), text(output.stderr)),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
}

#[tokio::test]
async fn wrong_use_exits_with_two_and_a_database_that_is_away_with_one() {
    let side = Producers::start().await;
    for (args, said) in [
        (vec!["enqueue", "--queue", "q"], "--type"),
        (
            vec![
                "enqueue", "--queue", "q", "--type", "t", "--lines", "--wait",
            ],
            "--wait",
        ),
        (
            vec!["enqueue", "--queue", "q", "--type", "t", "--label", "x"],
            "NAME=VALUE",
        ),
        (
            vec![
                "enqueue",
                "--queue",
                "q",
                "--type",
                "t",
                "--payload",
                "@/nowhere",
            ],
            "/nowhere",
        ),
        (
            vec!["enqueue", "--queue", "q", "--type", "t", "--delay", "soon"],
            "FP-005",
        ),
        (
            vec![
                "enqueue",
                "--queue",
                "q",
                "--type",
                "t",
                "--database-url",
                "mysql://x",
            ],
            "postgres://",
        ),
        (vec!["task", "list", "--state", "odd"], "FP-103"),
        (vec!["task", "show", "x"], "invalid value"),
    ] {
        let output = side.command(&args, b"").await;
        let stderr = text(output.stderr);
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(2), 0),
            "{stderr}"
        );
        assert!(stderr.contains(said), "{stderr}");
    }
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://u@{}/d", closed.local_addr().unwrap());
    drop(closed);
    let output = side
        .command(&["task", "list", "--database-url", &url], b"")
        .await;
    let stderr = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("FP-110"), "{stderr}");
}

#[tokio::test]
async fn migrate_says_what_is_missing_and_applies_it() {
    let db = TestDb::empty().await;
    let url = db.url();
    let migrate_with = async |more: &[&str]| {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args([&["migrate"], more].concat())
            .env("DATABASE_URL", &url)
            .output()
            .await
            .unwrap();
        (output.status.code(), text(output.stdout))
    };
    let (code, missing) = migrate_with(&["--check"]).await;
    assert_eq!(code, Some(1));
    assert!(missing.starts_with("0001 tables\n"), "{missing}");
    let listing = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["task", "list", "--database-url", &url])
        .output()
        .await
        .unwrap();
    let said = text(listing.stderr);
    assert!(
        said.contains("FP-113") && said.contains("fencepost migrate"),
        "{said}"
    );
    assert_eq!(migrate_with(&[]).await.0, Some(0));
    assert_eq!(migrate_with(&["--check"]).await, (Some(0), String::new()));
    assert_eq!(migrate_with(&["--sql"]).await, (Some(0), migrate::sql()));
}
