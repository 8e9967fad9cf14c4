//! How a handler ended, for its span.

use std::future::Future;

use super::{Failure, Success};
use crate::telemetry::trace::{Ending, HandlerSpan};

/// Runs a handler within its span.
pub(super) async fn run(
    span: HandlerSpan,
    handler: impl Future<Output = Result<Success, Failure>>,
) -> Result<Success, Failure> {
    let outcome = span.around(handler).await;
    span.end(|| match &outcome {
        Ok(_) => ended("done"),
        Err(Failure::Retryable { class, .. } | Failure::Terminal { class, .. }) => Ending {
            outcome: "failed",
            failure: Some(class),
        },
        Err(Failure::Cancelled) => ended("cancelled"),
        Err(Failure::Snooze { .. }) => ended("snooze"),
    });
    outcome
}

fn ended(outcome: &'static str) -> Ending<'static> {
    Ending {
        outcome,
        failure: None,
    }
}

#[cfg(all(test, feature = "otel"))]
mod tests;
