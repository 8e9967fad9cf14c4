//! The worker SDK against a scripted dispatcher.

use std::time::Duration;

use bytes::Bytes;
use fencepost::proto::worker::{
    Failed, FailureKind, Ping, RefusedReason, Result as Report, Succeeded, Verdict,
    dispatcher_frame::Frame as Out, result::Outcome as Wire, worker_frame::Frame as In,
};
use fencepost::worker::ledger::{self, Answer};
use fencepost::worker::{Error, Failure, Options, Outcome, Success, Task, Worker};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::support::scripted_dispatcher::{ScriptedDispatcher, task, token};

/// A worker under test; dropped, it stops.
pub struct Running {
    pub stop: CancellationToken,
    run: JoinSet<Result<(), Error>>,
}

impl Running {
    pub fn start(worker: Worker) -> Self {
        let stop = CancellationToken::new();
        let mut run = JoinSet::new();
        run.spawn(worker.run(stop.clone().cancelled_owned()));
        Self { stop, run }
    }

    pub async fn ended(&mut self) -> Result<(), Error> {
        let ended = tokio::time::timeout(Duration::from_secs(20), self.run.join_next());
        ended
            .await
            .expect("the worker did not end")
            .unwrap()
            .unwrap()
    }
}

pub fn options(dispatcher: &ScriptedDispatcher) -> Options {
    Options {
        connect: vec![dispatcher.url.clone()],
        task_queue: "q".into(),
        slots: 4,
        ..Options::default()
    }
}

/// Types: `echo`, `wait` (until cancelled), `panic`.
fn worker(options: Options) -> Worker {
    Worker::new(options)
        .handle("echo", |task: Task| async move {
            Ok(Success::bytes(task.payload().clone(), task.content_type()))
        })
        .handle("wait", |task: Task| async move {
            task.cancelled().cancelled().await;
            Err(Failure::Cancelled)
        })
        .handle("panic", |task: Task| async move {
            panic!("no luck with {}", task.id());
        })
}

/// A worker whose `gate` tasks end, with the id as result, when the test says so.
pub fn gated(options: Options) -> (Worker, mpsc::Sender<()>) {
    let (open, gate) = mpsc::channel::<()>(64);
    let gate = std::sync::Arc::new(tokio::sync::Mutex::new(gate));
    let worker = worker(options).handle("gate", move |task: Task| {
        let gate = std::sync::Arc::clone(&gate);
        async move {
            gate.lock().await.recv().await;
            Ok(Success::json(task.id()))
        }
    });
    (worker, open)
}

pub fn succeeded(report: &Report) -> &Succeeded {
    match &report.outcome {
        Some(Wire::Succeeded(success)) => success,
        other => panic!("not a success: {other:?}"),
    }
}

fn failed(report: &Report) -> &Failed {
    match &report.outcome {
        Some(Wire::Failed(failed)) => failed,
        other => panic!("not a failure: {other:?}"),
    }
}

#[tokio::test]
async fn a_task_is_accepted_run_reported_and_forgotten_after_its_ack() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let mut running = Running::start(worker(options(&dispatcher)));
    let mut session = dispatcher.session(|_| {}).await;
    assert_eq!(session.register.protocol, 1);
    assert_eq!(session.register.namespaces, ["default"]);
    assert!(!session.register.instance.is_empty());

    session.deliver([task(1, "echo", "{\"n\": 1}")]).await;
    assert_eq!(session.accepted().await, [token(1)]);
    let result = session.result().await;
    assert_eq!(result.token, token(1));
    assert_eq!(succeeded(&result).payload, "{\"n\": 1}");
    session.ack(&token(1), Verdict::Recorded).await;
    drop(session);

    let session = dispatcher.session(|_| {}).await;
    assert_eq!(session.register.resume, []);
    running.stop.cancel();
    running.ended().await.unwrap();
}

#[tokio::test]
async fn what_it_cannot_run_is_refused_with_the_reason() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let options = Options {
        slots: 1,
        ..options(&dispatcher)
    };
    let _running = Running::start(worker(options));
    let mut session = dispatcher.session(|_| {}).await;
    session
        .deliver([
            task(1, "wait", ""),
            task(2, "wait", ""),
            task(3, "other", ""),
        ])
        .await;
    assert_eq!(session.accepted().await, [token(1)]);
    for (expected, reason) in [
        (token(3), RefusedReason::UnknownType),
        (token(2), RefusedReason::NoSlot),
    ] {
        let In::Refused(refused) = session.next().await else {
            panic!("not Refused");
        };
        assert_eq!(refused.reason(), reason);
        assert_eq!(refused.tokens, [expected]);
    }
    // The slot is free again once the result is out, before its ack.
    session.cancel(&token(1)).await;
    let report = session.result().await;
    assert_eq!(failed(&report).kind(), FailureKind::Cancelled);
    session.deliver([task(4, "echo", "4")]).await;
    assert_eq!(session.accepted().await, [token(4)]);
}

#[tokio::test]
async fn a_result_without_an_ack_is_reported_again_after_a_cut() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let _running = Running::start(worker(options(&dispatcher)));
    let mut session = dispatcher.session(|_| {}).await;
    session
        .deliver([task(1, "echo", "1"), task(2, "wait", "")])
        .await;
    session.accepted().await;
    let first = session.result().await;
    let instance = session.register.instance.clone();
    drop(session);

    let resumed = vec![token(1), token(2)];
    let mut session = dispatcher
        .session(|welcome| welcome.resumed = resumed)
        .await;
    assert_eq!(session.register.instance, instance);
    let mut named: Vec<_> = session
        .register
        .resume
        .iter()
        .map(|held| held.task_id)
        .collect();
    named.sort_unstable();
    assert_eq!(named, [1, 2]);
    assert_eq!(session.result().await, first);

    // A delivery that it has already is confirmed, not run twice.
    session
        .deliver([task(1, "echo", "1"), task(2, "wait", "")])
        .await;
    assert_eq!(session.accepted().await, [token(1), token(2)]);
    assert_eq!(session.result().await, first);
    session.cancel(&token(2)).await;
    assert_eq!(session.result().await.token, token(2));
}

#[tokio::test]
async fn an_abandoned_task_is_cancelled_and_its_result_forgotten() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let mut running = Running::start(worker(options(&dispatcher)));
    let mut session = dispatcher.session(|_| {}).await;
    session
        .deliver([task(1, "echo", "1"), task(2, "wait", "")])
        .await;
    session.accepted().await;
    session.result().await;
    drop(session);

    let abandoned = vec![token(1), token(2)];
    let mut session = dispatcher
        .session(|welcome| welcome.abandoned = abandoned)
        .await;
    // Draining ends only when nothing runs: the waiting handler was cancelled.
    running.stop.cancel();
    assert!(matches!(session.next().await, In::Drain(_)));
    session.goodbye().await;
    running.ended().await.unwrap();
}

#[tokio::test]
async fn a_final_status_ends_the_worker_and_others_are_tried_again() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    dispatcher.deny(Status::unavailable("starting"));
    dispatcher.deny(Status::resource_exhausted("full"));
    let mut running = Running::start(worker(options(&dispatcher)));
    let session = dispatcher.session(|_| {}).await;
    dispatcher.deny(Status::permission_denied("namespace default"));
    drop(session);
    let Err(Error::Denied { code, message }) = running.ended().await else {
        panic!("the worker did not end as denied");
    };
    assert_eq!(code, tonic::Code::PermissionDenied);
    assert_eq!(message, "namespace default");
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_takes_nothing_new() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let (worker, open) = gated(options(&dispatcher));
    let mut running = Running::start(worker);
    let mut session = dispatcher.session(|_| {}).await;
    session.deliver([task(1, "gate", "")]).await;
    session.accepted().await;
    running.stop.cancel();
    assert!(matches!(session.next().await, In::Drain(_)));
    session.deliver([task(2, "echo", "2")]).await;
    let In::Refused(refused) = session.next().await else {
        panic!("not Refused");
    };
    assert_eq!(refused.reason(), RefusedReason::Draining);
    open.send(()).await.unwrap();
    assert_eq!(succeeded(&session.result().await).payload, "1");
    // The result is in flight: a cut now must not lose it.
    drop(session);
    let mut session = dispatcher
        .session(|welcome| welcome.resumed = vec![token(1)])
        .await;
    let mut frames = [session.next().await, session.next().await];
    frames.sort_by_key(|frame| matches!(frame, In::Drain(_)));
    assert!(
        matches!(frames, [In::Results(_), In::Drain(_)]),
        "{frames:?}"
    );
    session.ack(&token(1), Verdict::Recorded).await;
    session.goodbye().await;
    running.ended().await.unwrap();
}

#[tokio::test]
async fn handlers_that_outlast_the_drain_are_cancelled_and_reported() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let options = Options {
        drain_timeout: Duration::from_millis(50),
        ..options(&dispatcher)
    };
    let mut running = Running::start(worker(options));
    let mut session = dispatcher.session(|_| {}).await;
    session.deliver([task(1, "wait", "")]).await;
    session.accepted().await;
    running.stop.cancel();
    assert!(matches!(session.next().await, In::Drain(_)));
    let report = session.result().await;
    assert_eq!(failed(&report).kind(), FailureKind::Cancelled);
    session.ack(&token(1), Verdict::Superseded).await;
    session.goodbye().await;
    running.ended().await.unwrap();
}

#[tokio::test]
async fn a_panic_is_a_retryable_failure_of_that_task_alone() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let _running = Running::start(worker(options(&dispatcher)));
    let mut session = dispatcher.session(|_| {}).await;
    session.deliver([task(1, "panic", "")]).await;
    session.accepted().await;
    let report = session.result().await;
    assert_eq!(report.token, token(1));
    let failure = failed(&report);
    assert_eq!(failure.kind(), FailureKind::Retryable);
    assert_eq!(failure.class, "panic");
    assert_eq!(failure.message, "the handler panicked: no luck with 1");
    session.deliver([task(2, "echo", "2")]).await;
    session.accepted().await;
    assert_eq!(session.result().await.token, token(2));
}

#[tokio::test]
async fn pings_are_answered_while_handlers_block_every_thread_they_have() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = parking_lot::Mutex::new(blocked);
    let worker = Worker::new(options(&dispatcher)).handle("block", move |_: Task| {
        blocked.lock().recv().unwrap();
        async { Ok(Success::empty()) }
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(worker.run(async { stopped.await.unwrap() }))
    });

    let mut session = dispatcher.session(|_| {}).await;
    session.deliver([task(1, "block", "")]).await;
    session.accepted().await;
    session.send(Out::Ping(Ping { sequence: 7 })).await;
    let In::Pong(pong) = session.next().await else {
        panic!("not Pong");
    };
    assert_eq!(pong.sequence, 7);
    unblock.send(()).unwrap();
    assert_eq!(session.result().await.token, token(1));
    session.ack(&token(1), Verdict::Recorded).await;
    stop.send(()).unwrap();
    assert!(matches!(session.next().await, In::Drain(_)));
    drop(session);
    thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn a_silent_dispatcher_is_left_and_running_tasks_are_named_to_the_next() {
    let mut silent = ScriptedDispatcher::start().await;
    let mut next = ScriptedDispatcher::start().await;
    let options = Options {
        connect: vec![silent.url.clone(), next.url.clone()],
        ..options(&silent)
    };
    let (worker, open) = gated(options);
    let _running = Running::start(worker);
    let mut first = silent
        .session(|welcome| welcome.silence_window_ms = 200)
        .await;
    first.deliver([task(1, "gate", "")]).await;
    first.accepted().await;
    // The stream stays open and nothing is sent.
    let mut second = next
        .session(|welcome| welcome.resumed = vec![token(1)])
        .await;
    assert_eq!(second.register.resume.len(), 1);
    assert_eq!(second.register.resume[0].token, token(1));
    open.send(()).await.unwrap();
    assert_eq!(second.result().await.token, token(1));
}

#[tokio::test]
async fn results_keep_to_the_limits_of_the_welcome() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let (worker, open) = gated(Options {
        slots: 64,
        ..options(&dispatcher)
    });
    let worker = worker.handle("sized", |task: Task| async move {
        let size: usize = task.json()?;
        Ok(Success::bytes(vec![0; size], "application/octet-stream"))
    });
    let _running = Running::start(worker);
    let limit = 64 << 10;
    let session = dispatcher
        .session(|welcome| {
            welcome.max_frame_bytes = limit;
            welcome.max_result_bytes = 20_000;
        })
        .await;
    let mut session = session;
    session
        .deliver([task(1, "sized", "20001"), task(2, "sized", "\"x\"")])
        .await;
    session.accepted().await;
    let mut reports = Vec::new();
    while reports.len() < 2 {
        reports.extend(session.results().await);
    }
    reports.sort_by_key(|report| report.token.clone());
    assert_eq!(failed(&reports[0]).class, "result_too_large");
    assert_eq!(failed(&reports[0]).kind(), FailureKind::Terminal);
    assert_eq!(failed(&reports[1]).class, "invalid_payload");

    session
        .deliver((3..43).map(|id| task(id, "sized", "20000")))
        .await;
    session.accepted().await;
    let mut tokens = Vec::new();
    while tokens.len() < 40 {
        let results = session.results().await;
        assert!(
            results.len() <= 3,
            "{} results of 20,000 bytes",
            results.len()
        );
        tokens.extend(results.into_iter().map(|report| report.token));
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 40);
    drop(open);
}

#[tokio::test]
async fn twenty_thousand_tasks_at_full_slots_are_never_refused() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let count = 20_000;
    let slots = 1_000;
    let worker = worker(Options {
        slots,
        ..options(&dispatcher)
    });
    let _running = Running::start(worker);
    let mut session = dispatcher.session(|_| {}).await;
    let mut ids = 0..count;
    let mut done = 0;
    session
        .deliver(
            ids.by_ref()
                .take(slots as usize)
                .map(|id| task(id, "echo", "x")),
        )
        .await;
    while done < count {
        match session.next().await {
            In::Accepted(_) => {}
            In::Results(results) => {
                // Each result frees a slot; the next task is sent before the ack.
                let freed = results.results.len();
                done += i64::try_from(freed).unwrap();
                session
                    .deliver(ids.by_ref().take(freed).map(|id| task(id, "echo", "x")))
                    .await;
                let tokens = results.results.iter().map(|result| &result.token);
                session.ack_all(tokens, Verdict::Recorded).await;
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(done, count);
}

#[tokio::test]
async fn progress_reaches_the_dispatcher() {
    let mut dispatcher = ScriptedDispatcher::start().await;
    let worker = worker(options(&dispatcher)).handle("steps", |task: Task| async move {
        task.progress("half-way", Some(50));
        task.cancelled().cancelled().await;
        Err(Failure::Snooze {
            after: Duration::from_secs(3),
        })
    });
    let _running = Running::start(worker);
    let mut session = dispatcher.session(|_| {}).await;
    session.deliver([task(1, "steps", "")]).await;
    session.accepted().await;
    let In::Progress(progress) = session.next().await else {
        panic!("not Progress");
    };
    assert_eq!(
        (progress.text.as_str(), progress.percent),
        ("half-way", Some(50))
    );
    session.cancel(&token(1)).await;
    let report = session.result().await;
    let Some(Wire::Snoozed(snoozed)) = report.outcome else {
        panic!("not Snoozed");
    };
    assert_eq!(snoozed.after_ms, 3_000);
}

#[tokio::test]
async fn the_ledger_tells_starts_ends_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut dispatcher = ScriptedDispatcher::start().await;
    let mut running = Running::start(worker(Options {
        ledger: Some(path.clone()),
        ..options(&dispatcher)
    }));
    let mut session = dispatcher.session(|_| {}).await;
    for (id, task_type, verdict) in [
        (1, "echo", Verdict::Recorded),
        (2, "panic", Verdict::Superseded),
    ] {
        session.deliver([task(id, task_type, "1")]).await;
        session.accepted().await;
        session.result().await;
        session.ack(&token(id), verdict).await;
    }
    session.deliver([task(3, "wait", "")]).await;
    session.accepted().await;
    // Started, and no more known: as after a kill.
    running.run.abort_all();

    let runs = ledger::read(&path).unwrap();
    let seen: Vec<_> = runs
        .iter()
        .map(|run| (run.task_id, run.epoch, run.fence, run.outcome, run.answer))
        .collect();
    assert_eq!(
        seen,
        [
            (1, 0, 1, Some(Outcome::Succeeded), Some(Answer::Recorded)),
            (2, 0, 1, Some(Outcome::Retryable), Some(Answer::Superseded)),
            (3, 0, 1, None, None),
        ]
    );
    assert_eq!(runs[0].task_type, "echo");
    assert!(runs[0].end_us.unwrap() >= runs[0].start_us);
    assert_eq!(runs[2].end_us, None);
}

#[test]
fn a_torn_ledger_line_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let text =
        "S 1 0 1 5 1 two words\nS 1 0 1 6 2 again\nA 1 0 1 recorded\nE 9 0 1 7 succeeded\nS 2 0";
    std::fs::write(&path, text).unwrap();
    let runs = ledger::read(&path).unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0].task_type, "two words");
    assert_eq!(runs[0].answer, None);
    // A second start with the same token is a run of its own; what follows is its.
    assert_eq!(runs[1].answer, Some(Answer::Recorded));
}

#[tokio::test]
async fn unusable_options_are_refused_before_connecting() {
    let dispatcher = ScriptedDispatcher::start().await;
    let no_slots = Options {
        slots: 0,
        ..options(&dispatcher)
    };
    let ended = worker(no_slots).run(std::future::pending()).await;
    assert!(matches!(ended, Err(Error::Options(_))), "{ended:?}");
    let bad_address = Options {
        connect: vec!["not a url".into()],
        ..options(&dispatcher)
    };
    let ended = worker(bad_address).run(std::future::pending()).await;
    assert!(matches!(ended, Err(Error::Address { .. })), "{ended:?}");
}

#[test]
fn errors_become_retryable_failures_that_name_their_sources() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::fmt::Error);
    let failure = Failure::from(Outer(std::fmt::Error));
    let inner = std::fmt::Error.to_string();
    assert_eq!(
        failure,
        Failure::retryable("error", format!("outer: {inner}"))
    );
    let empty: Bytes = Success::empty().payload;
    assert!(empty.is_empty());
}
