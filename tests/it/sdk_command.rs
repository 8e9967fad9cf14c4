//! `fencepost worker --exec | --echo | --sleep`, with real processes behind a scripted dispatcher.

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use fencepost::cli;
use fencepost::proto::worker::{
    FailureKind, Result as Report, result::Outcome as Wire, worker_frame::Frame as In,
};
use fencepost::worker::Error;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::eventually;
use crate::support::scripted_dispatcher::{ScriptedDispatcher, ScriptedSession, task, token};

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: cli::worker::Args,
}

fn parse(more: &[&str]) -> Result<cli::worker::Args, clap::Error> {
    let plain = ["worker", "--queue", "q", "--type", "a,b"];
    Command::try_parse_from(plain.iter().chain(more)).map(|command| command.args)
}

struct Running {
    session: ScriptedSession,
    stop: CancellationToken,
    run: JoinSet<Result<(), Error>>,
    _dispatcher: ScriptedDispatcher,
}

async fn start(more: &[&str]) -> Running {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let connect = ["--connect", &dispatcher.url];
    let args = parse(&[&connect, more].concat()).unwrap();
    let stop = CancellationToken::new();
    let mut run = JoinSet::new();
    run.spawn(cli::worker::worker(args).run(stop.clone().cancelled_owned()));
    let session = dispatcher.session(|_| {}).await;
    Running {
        session,
        stop,
        run,
        _dispatcher: dispatcher,
    }
}

impl Running {
    async fn outcome(&mut self, payload: &str) -> Wire {
        self.session.deliver([task(1, "a", payload)]).await;
        self.session.accepted().await;
        self.outcome_of_running().await
    }

    async fn outcome_of_running(&mut self) -> Wire {
        let report: Report = self.session.result().await;
        assert_eq!(report.token, token(1));
        report.outcome.unwrap()
    }
}

async fn exec(command: &str, payload: &str) -> Wire {
    start(&["--exec", command]).await.outcome(payload).await
}

fn alive(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}

/// A pid that the command has written.
async fn pid_in(file: &Path) -> Pid {
    let number = eventually(Duration::from_secs(10), async || {
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    });
    Pid::from_raw(number.await)
}

#[tokio::test]
async fn stdout_of_a_command_that_exits_0_is_the_result() {
    for (command, payload, result, content_type) in [
        ("cat", "{\"a\": 1}", "{\"a\": 1}", "application/json"),
        ("cat; echo", "1 2", "1 2\n", "text/plain"),
        ("printf '\\377'", "", "\u{fffd}", "application/octet-stream"),
        // Neither reads its stdin nor writes anything.
        ("exit 0", "ignored", "", ""),
    ] {
        let Wire::Succeeded(success) = exec(command, payload).await else {
            panic!("{command} did not succeed");
        };
        assert_eq!(
            String::from_utf8_lossy(&success.payload),
            result,
            "{command}"
        );
        assert_eq!(success.content_type, content_type, "{command}");
    }
}

#[tokio::test]
async fn other_exit_codes_are_failures_with_the_end_of_stderr() {
    for (command, kind, class, message) in [
        (
            "echo gone >&2; exit 65",
            FailureKind::Terminal,
            "exit_65",
            "gone",
        ),
        (
            "echo busy >&2; exit 3",
            FailureKind::Retryable,
            "exit_3",
            "busy",
        ),
        ("exit 4", FailureKind::Retryable, "exit_4", "exit code 4"),
    ] {
        let Wire::Failed(failed) = exec(command, "").await else {
            panic!("{command} did not fail");
        };
        assert_eq!(failed.kind(), kind, "{command}");
        assert_eq!(
            (failed.class.as_str(), failed.message.as_str()),
            (class, message)
        );
    }
    let noisy = "head -c 100000 /dev/zero | tr '\\0' x >&2; printf end >&2; kill -9 $$";
    let Wire::Failed(failed) = exec(noisy, "").await else {
        panic!("a killed command did not fail");
    };
    assert_eq!(failed.class, "signal");
    assert_eq!(failed.message.len(), 4096);
    assert!(failed.message.ends_with("xxend"));
}

#[tokio::test]
async fn exit_75_snoozes_for_30_seconds() {
    let Wire::Snoozed(snoozed) = exec("exit 75", "").await else {
        panic!("not snoozed");
    };
    assert_eq!(snoozed.after_ms, 30_000);
}

#[tokio::test]
async fn the_command_learns_about_its_task_from_the_environment() {
    let print = "echo $FENCEPOST_TASK_ID $FENCEPOST_TOKEN $FENCEPOST_ATTEMPT $FENCEPOST_TYPE \
                 $FENCEPOST_NAMESPACE $FENCEPOST_QUEUE $FENCEPOST_FENCE \
                 $FENCEPOST_IDEMPOTENCY_KEY $FENCEPOST_CONTENT_TYPE";
    let Wire::Succeeded(success) = exec(print, "").await else {
        panic!("not succeeded");
    };
    assert_eq!(
        success.payload,
        "1 1.0.1 1 a default q 1 key-1 application/json\n"
    );
}

#[tokio::test]
async fn cancel_ends_the_whole_process_group() {
    let folder = tempfile::tempdir().unwrap();
    let (leader, child) = (folder.path().join("leader"), folder.path().join("child"));
    // The leader ends by SIGTERM; its child ignores it.
    let command = format!(
        "(trap '' TERM; sleep 600) & echo $! > {child}; echo $$ > {leader}; wait",
        child = child.display(),
        leader = leader.display()
    );
    let mut running = start(&["--exec", &command]).await;
    running.session.deliver([task(1, "a", "")]).await;
    running.session.accepted().await;
    let pids = [pid_in(&leader).await, pid_in(&child).await];
    running.session.cancel(&token(1)).await;
    let Wire::Failed(failed) = running.outcome_of_running().await else {
        panic!("not failed");
    };
    assert_eq!(failed.kind(), FailureKind::Cancelled);
    for pid in pids {
        let gone = async || (!alive(pid)).then_some(());
        eventually(Duration::from_secs(10), gone).await;
    }
}

#[tokio::test]
async fn a_drain_that_times_out_ends_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let command = format!("echo $$ > {}; exec sleep 600", file.display());
    let mut running = start(&["--exec", &command, "--drain-timeout", "50ms"]).await;
    running.session.deliver([task(1, "a", "")]).await;
    running.session.accepted().await;
    let pid = pid_in(&file).await;
    running.stop.cancel();
    assert!(matches!(running.session.next().await, In::Drain(_)));
    let Wire::Failed(failed) = running.outcome_of_running().await else {
        panic!("not failed");
    };
    assert_eq!(failed.kind(), FailureKind::Cancelled);
    assert!(!alive(pid));
}

#[tokio::test]
async fn a_worker_that_is_stopped_at_once_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let command = format!("echo $$ > {}; exec sleep 600", file.display());
    let mut running = start(&["--exec", &command]).await;
    running.session.deliver([task(1, "a", "")]).await;
    running.session.accepted().await;
    let pid = pid_in(&file).await;
    running.run.abort_all();
    let gone = async || (!alive(pid)).then_some(());
    eventually(Duration::from_secs(10), gone).await;
}

#[tokio::test]
async fn echo_returns_the_payload_and_sleep_can_be_cancelled() {
    let Wire::Succeeded(success) = start(&["--echo"]).await.outcome("[7]").await else {
        panic!("not succeeded");
    };
    assert_eq!(success.payload, "[7]");
    assert_eq!(success.content_type, "application/json");

    let Wire::Succeeded(success) = start(&["--sleep", "1"]).await.outcome("").await else {
        panic!("not succeeded");
    };
    assert!(success.payload.is_empty());

    let mut running = start(&["--sleep", "600000"]).await;
    running.session.deliver([task(1, "b", "")]).await;
    running.session.accepted().await;
    running.session.cancel(&token(1)).await;
    let outcome = running.outcome_of_running().await;
    assert!(matches!(outcome, Wire::Failed(failed) if failed.kind() == FailureKind::Cancelled));
}

#[test]
fn one_handler_must_be_named_and_only_one() {
    assert!(parse(&[]).is_err());
    assert!(parse(&["--echo", "--sleep", "5"]).is_err());
    assert!(parse(&["--echo", "--slots", "0"]).is_err());
    let args = parse(&["--echo", "--connect", "http://a:1,http://b:2"]).unwrap();
    assert_eq!(args.connect, ["http://a:1", "http://b:2"]);
    assert_eq!(args.types, ["a", "b"]);
    assert_eq!(args.namespaces, ["default"]);
}

#[tokio::test]
async fn an_address_that_is_none_is_bad_usage() {
    for address in ["foo", "ftp://127.0.0.1:7433", "http://a b"] {
        let ran = tokio::process::Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(["worker", "--queue", "q", "--type", "t", "--echo"])
            .args(["--connect", address])
            .output();
        let ran = tokio::time::timeout(Duration::from_secs(20), ran).await;
        let ran = ran.unwrap().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(2), "{address}: {said}");
        assert!(said.contains("address"), "{said}");
    }
}
