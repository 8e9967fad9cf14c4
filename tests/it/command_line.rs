//! The command line as a whole: its text, its documents, its lists while they are empty, and the live view.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use clap::{Command, CommandFactory as _};
use fencepost::cli::Cli;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::support::{Operator, Producers, Replica, ScriptedWorker, TestDb, eventually, fencepost};

const STEP: Duration = Duration::from_secs(20);

/// Every list, with what its table needs to be asked.
const LISTS: [&[&str]; 12] = [
    &["task", "list"],
    &["dead-letter", "list"],
    &["dead-letter", "redrives"],
    &["queue", "list"],
    &["queue", "unserved"],
    &["queue", "stopped-keys"],
    &["namespace", "list"],
    &["workflow", "list"],
    &["workflow", "members", "ID", "--after", "100"],
    &["workflow", "events", "ID", "--after", "1000000000"],
    &["workers", "list"],
    &["pause", "--list"],
];

/// Commands without subcommands that people see, by their words.
fn leaves(command: &Command, above: &[String], found: &mut Vec<(Vec<String>, Command)>) {
    for sub in command.get_subcommands() {
        if sub.is_hide_set() || sub.get_name() == "help" {
            continue;
        }
        let mut path = above.to_vec();
        path.push(sub.get_name().to_owned());
        if sub.has_subcommands() {
            assert!(sub.get_about().is_some(), "{path:?}");
            leaves(sub, &path, found);
        } else {
            found.push((path, sub.clone()));
        }
    }
}

fn commands() -> Vec<(Vec<String>, Command)> {
    let mut found = Vec::new();
    leaves(&Cli::command(), &[], &mut found);
    assert!(found.len() > 40);
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_command_and_every_argument_says_what_it_is() {
    for (path, command) in commands() {
        let about = command.get_about().map(ToString::to_string);
        assert!(about.is_some_and(|about| about.len() > 8), "{path:?}");
        for argument in command.get_arguments().filter(|one| !one.is_hide_set()) {
            let help = argument.get_help().map(ToString::to_string);
            assert!(
                help.is_some_and(|help| help.len() > 3),
                "{path:?} {}",
                argument.get_id()
            );
        }
    }
}

#[test]
fn the_page_names_every_command_and_no_other() {
    let page = include_str!("../../docs/cli.md");
    let known: BTreeSet<String> = commands()
        .into_iter()
        .map(|(path, _)| path.join(" "))
        .collect();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `fencepost "));
    let named: BTreeSet<String> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split('`'))
        .filter_map(|text| text.strip_prefix("fencepost "))
        .map(str::to_owned)
        .collect();
    assert_eq!(named, known);
}

/// What prints a table prints JSON too.
#[test]
fn every_command_that_prints_a_table_has_an_output() {
    let without = [
        "serve",
        "worker",
        "demo",
        "healthcheck",
        "completions",
        "man",
        "version",
        // These answer by their exit code and a sentence.
        "config check",
    ];
    for (path, command) in commands() {
        let name = path.join(" ");
        let has = |id: &str| command.get_arguments().any(|one| one.get_id() == id);
        let expected = !without.contains(&name.as_str()) && path[0] != "bench";
        assert_eq!(has("output"), expected, "{name}");
        assert!(path[0] != "bench" || has("json"), "{name}");
    }
}

#[tokio::test]
async fn every_list_says_what_to_do_while_it_is_empty() {
    for (path, command) in commands() {
        let about = command.get_about().unwrap().to_string();
        let is_known = LISTS.iter().any(|list| {
            list.len() >= path.len() && path.iter().zip(*list).all(|(word, listed)| word == listed)
        });
        assert_eq!(
            about.starts_with("List "),
            is_known && path[0] != "pause",
            "{path:?}"
        );
    }
    let side = Producers::start().await;
    let body =
        r#"{"name": "w", "paused": true, "members": [{"task_queue": "q", "task_type": "t"}]}"#;
    let started = side.post("/v1/workflows", body).await;
    let id = started.json()["workflow_id"].as_str().unwrap().to_owned();
    let is_filled = |list: &[&str]| {
        ["queue list", "task list", "workflow list"].contains(&list.join(" ").as_str())
    };
    for list in LISTS {
        let mut words: Vec<&str> = list
            .iter()
            .map(|word| if *word == "ID" { &id } else { *word })
            .collect();
        if is_filled(list) {
            words.extend(["--namespace", "nobody"]);
        }
        let is_there = list == ["namespace", "list"] as [&str; 2];
        let table = side.command(&words, b"").await;
        let (out, said) = (text(&table.stdout), text(&table.stderr));
        assert!(table.status.success(), "{words:?}: {said}");
        assert_eq!(out.is_empty(), !is_there, "{words:?}: {out}");
        let next = said.strip_prefix("fencepost: ").unwrap_or_default();
        assert_eq!(next.contains("fencepost "), !is_there, "{words:?}: {said}");

        words.extend(["--output", "json"]);
        let json = side.command(&words, b"").await;
        let (out, said) = (text(&json.stdout), text(&json.stderr));
        assert!(said.is_empty(), "{words:?}: {said}");
        let list: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            list.as_array().unwrap().is_empty(),
            !is_there,
            "{words:?}: {out}"
        );
    }
}

#[tokio::test]
async fn shells_read_the_completions_and_pages_are_written() {
    let none = "postgres://nobody@127.0.0.1:1/none";
    let bash = fencepost(none, &["completions", "bash"]).await;
    let script = format!(
        "set -eu\n{}\nCOMP_WORDS=(fencepost dead-letter re) COMP_CWORD=2 COMPREPLY=()\n\
         _fencepost fencepost re dead-letter\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        text(&bash.stdout)
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("completed");
    std::fs::write(&file, script).unwrap();
    let ran = tokio::process::Command::new("bash")
        .arg(&file)
        .output()
        .await
        .unwrap();
    let words = text(&ran.stdout);
    let words: BTreeSet<&str> = words.lines().collect();
    assert_eq!(
        words,
        BTreeSet::from(["redrive", "redrives", "resume"]),
        "{ran:?}"
    );
    for shell in ["zsh", "fish"] {
        let script = text(&fencepost(none, &["completions", shell]).await.stdout);
        assert!(
            script.contains("dead-letter") && script.len() > 10_000,
            "{shell}"
        );
    }
    let refused = fencepost(none, &["completions", "tcsh"]).await;
    assert_eq!(refused.status.code(), Some(2));

    let pages = folder.path().join("man/man1");
    let written = fencepost(none, &["man", pages.to_str().unwrap()]).await;
    assert!(written.status.success(), "{written:?}");
    for (path, _) in commands() {
        let page = pages.join(format!("fencepost-{}.1", path.join("-")));
        let page = std::fs::read_to_string(&page)
            .unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!pages.join("fencepost-bench-worker.1").exists());
    let refused = fencepost(none, &["man", "/dev/null/man"]).await;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// A look is a line; it begins at once and ends with its number or with a signal.
#[tokio::test]
async fn watch_prints_a_line_a_look_where_there_is_no_terminal() {
    let db = TestDb::new().await;
    let replica = Replica::start(&db.url(), &[]).await;
    let _worker = ScriptedWorker::connect(&replica.url()).await;
    let operator = Operator::of(&replica);
    eventually(STEP, async || {
        let list = operator.get("/v1/workers").await;
        (list["workers"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    let enqueue = ["enqueue", "--queue", "elsewhere", "--type", "t"];
    for _ in 0..3 {
        assert!(fencepost(&db.url(), &enqueue).await.status.success());
    }
    let often = ["watch", "--interval", "100ms", "--count", "3"];
    let watched = fencepost(&db.url(), &often).await;
    assert!(watched.status.success(), "{watched:?}");
    let out = text(&watched.stdout);
    assert_eq!(out.lines().count(), 3, "{out}");
    assert!(!out.contains('\x1b'), "{out}");
    for line in out.lines() {
        assert!(
            line.contains(" ready 3 later 0 held 0 running 0 "),
            "{line}"
        );
        assert!(line.contains(" workers 1 busy 0/"), "{line}");
    }

    let json = fencepost(
        &db.url(),
        &[&often[..], &["--output", "json", "--queue", "elsewhere"]].concat(),
    )
    .await;
    let looks: Vec<Value> = text(&json.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(looks.len(), 3);
    assert_eq!(looks[0]["enqueued_per_s"], Value::Null);
    assert!(looks[1]["enqueued_per_s"].is_f64(), "{}", looks[1]);
    assert_eq!(
        (&looks[2]["ready"], &looks[2]["queues"][0]["task_queue"]),
        (&3.into(), &"elsewhere".into())
    );

    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["watch", "--interval", "1h"])
        .env("DATABASE_URL", db.url())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = tokio::time::timeout(STEP, lines.next_line()).await.unwrap();
    assert!(first.unwrap().unwrap().contains(" ready 3 "));
    let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let ended = tokio::time::timeout(STEP, child.wait()).await.unwrap();
    assert_eq!(ended.unwrap().code(), Some(130));

    let refused = fencepost(&db.url(), &["watch", "--interval", "1ms"]).await;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[tokio::test]
async fn watch_redraws_a_terminal_and_gives_its_cursor_back() {
    let db = TestDb::new().await;
    let program = env!("CARGO_BIN_EXE_fencepost");
    let command = format!("stty rows 12 cols 60; {program} watch --interval 100ms --count 2");
    let drawn = tokio::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("DATABASE_URL", db.url())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(drawn.status.success(), "{drawn:?}");
    let out = text(&drawn.stdout);
    assert_eq!(out.matches("\x1b[H").count(), 2, "{out:?}");
    assert_eq!(
        out.matches("no worker is connected; start one: fencepost worker")
            .count(),
        2,
        "{out:?}"
    );
    assert!(
        out.contains("\x1b[?25l") && out.trim_end().ends_with("\x1b[?25h"),
        "{out:?}"
    );
    for line in out.split(['\n', '\r']) {
        let mut plain = line.to_owned();
        for code in [
            "\x1b[H",
            "\x1b[K",
            "\x1b[J",
            "\x1b[2J",
            "\x1b[?25l",
            "\x1b[?25h",
        ] {
            plain = plain.replace(code, "");
        }
        assert!(plain.chars().count() <= 60, "{plain:?}");
    }
}
