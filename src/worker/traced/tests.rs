use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use opentelemetry::trace::{Status, TraceContextExt as _};
use opentelemetry::{Context, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span, SpanData, SpanProcessor};
use parking_lot::Mutex;

use super::*;
use crate::proto::worker::Task;

/// Keeps every span that has ended in this process.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanProcessor for Kept {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.lock().push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

const DELIVERY: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn task() -> Task {
    Task {
        task_queue: "q".into(),
        trace_context: DELIVERY.into(),
        ..Task::default()
    }
}

/// Outcome and class of the only span so far.
fn only(kept: &Kept) -> (String, String) {
    let mut spans = std::mem::take(&mut *kept.0.lock());
    let span = spans.remove(0);
    assert!(spans.is_empty(), "{spans:?}");
    let of = |name: &str| {
        let found = span.attributes.iter().find(|one| one.key.as_str() == name);
        found.map_or_else(String::new, |one| one.value.to_string())
    };
    let class = of("error.type");
    let status = if class.is_empty() {
        Status::Unset
    } else {
        Status::error(class.clone())
    };
    assert_eq!(span.status, status);
    (of("fencepost.outcome"), class)
}

/// One test alone, since what is installed is the process's.
#[tokio::test]
async fn a_handler_runs_within_its_span_which_says_how_it_ended() {
    let mut before = task();
    let span = HandlerSpan::begin(&mut before);
    assert_eq!(before.trace_context, DELIVERY, "nothing is installed");
    drop(span);

    let kept = Kept::default();
    let provider = SdkTracerProvider::builder().with_span_processor(kept.clone());
    global::set_tracer_provider(provider.build());
    let mut wire = task();
    let span = HandlerSpan::begin(&mut wire);
    let seen = async {
        let context = Context::current();
        let seen = context.span().span_context().clone();
        Ok(Success::bytes(
            format!("00-{}-{}-01", seen.trace_id(), seen.span_id()),
            "text/plain",
        ))
    };
    let seen = run(span, seen).await.unwrap();
    assert_eq!(seen.payload, wire.trace_context);
    assert_ne!(wire.trace_context, DELIVERY);
    assert_eq!(wire.trace_context.get(..36), DELIVERY.get(..36));
    assert_eq!(only(&kept), ("done".into(), String::new()));

    for (failure, outcome, class) in [
        (Failure::retryable("busy", "data"), "failed", "busy"),
        (Failure::terminal("gone", "data"), "failed", "gone"),
        (Failure::Cancelled, "cancelled", ""),
        (
            Failure::Snooze {
                after: Duration::ZERO,
            },
            "snooze",
            "",
        ),
    ] {
        let span = HandlerSpan::begin(&mut task());
        run(span, async { Err(failure) }).await.unwrap_err();
        assert_eq!(only(&kept), (outcome.into(), class.into()));
    }

    let span = HandlerSpan::begin(&mut task());
    let panics = run(span, async { panic!("as the test says") });
    assert!(AssertUnwindSafe(panics).catch_unwind().await.is_err());
    assert_eq!(only(&kept), ("failed".into(), "panic".into()));

    let span = HandlerSpan::begin(&mut task());
    let mut hangs = Box::pin(run(span, std::future::pending()));
    assert!((&mut hangs).now_or_never().is_none());
    drop(hangs);
    assert_eq!(only(&kept), ("failed".into(), "aborted".into()));
}
