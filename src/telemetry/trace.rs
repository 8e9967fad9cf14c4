//! Traces: a span where a task comes in, one around each delivery, one around its handler, and their way to a collector.
//!
//! Everything about spans is in here: what they are called, what stands in them, how they end. Those who meet a task hold
//! its span as a plain value. Built without the feature `otel` these values are empty and their methods do nothing, so
//! that nobody who holds one needs to know. docs/traces.md describes the spans for those who read them.

#[cfg(feature = "otel")]
mod export;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod on;

use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::Authority;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::parts::counter;
use crate::domain::id::Token;
use crate::domain::route::Route;

#[cfg(feature = "otel")]
pub use export::{Exporter, install};
#[cfg(not(feature = "otel"))]
pub use off::{DeliverySpan, EnqueueSpan, Exporter, HandlerSpan, Tracing, install};
#[cfg(feature = "otel")]
pub use on::{DeliverySpan, EnqueueSpan, HandlerSpan, Tracing};

/// Whether this program was built with traces.
pub const BUILT_IN: bool = cfg!(feature = "otel");

/// Where spans go, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The collector, as `http://HOST:PORT` or `https://HOST:PORT`, with or without a path.
    pub endpoint: String,
    /// The part of the traces that begin here that is recorded, from 0 to 1. A trace that somebody else has begun is
    /// recorded where they record it.
    pub sample_ratio: f64,
    /// What this program is called among others.
    pub service_name: String,
    /// Which one of that name it is.
    pub instance: String,
}

/// A text that is no address of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a URL such as http://127.0.0.1:4318, without user and password")]
pub struct BadEndpoint;

/// The address of a collector as people give it; empty for none. A password has no place in it, since it is shown and
/// logged.
///
/// # Errors
/// [`BadEndpoint`], which says what it must be.
pub fn endpoint(text: &str) -> Result<Option<String>, BadEndpoint> {
    if text.is_empty() {
        return Ok(None);
    }
    let uri: Uri = text.parse().map_err(|_| BadEndpoint)?;
    let has_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri.authority().map(Authority::as_str);
    let is_open = host.is_some_and(|host| !host.contains('@')) && uri.query().is_none();
    if has_scheme && is_open {
        Ok(Some(text.to_owned()))
    } else {
        Err(BadEndpoint)
    }
}

/// Why spans can't be exported at all.
#[derive(Debug, thiserror::Error)]
#[error("traces can't be exported: {0}")]
pub struct Error(pub String);

/// What is counted about spans.
#[derive(Clone, Debug)]
pub struct Spans {
    /// The collector has taken them.
    pub exported: Counter,
    /// They are lost: there were more than could be sent, or the collector did not take them.
    pub dropped: Counter,
}

impl Spans {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            exported: counter(
                registry,
                "spans_exported",
                "Spans that a collector has taken",
            ),
            dropped: counter(
                registry,
                "spans_dropped",
                "Spans that were lost, since there were too many or no collector took them",
            ),
        }
    }
}

impl Default for Spans {
    fn default() -> Self {
        Self::new(&mut Registry::default())
    }
}

/// What comes in.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'t> {
    /// What is done with it: `enqueue`, `start_workflow` or `add_members`.
    pub operation: &'static str,
    /// Their namespace, where they have the same one and name it.
    pub namespace: Option<&'t str>,
    /// Their task queue, where they have the same one.
    pub task_queue: Option<&'t str>,
    /// Their task type, where they have the same one.
    pub task_type: Option<&'t str>,
    /// How many they are.
    pub tasks: usize,
}

/// What is delivered.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'r> {
    /// The delivery.
    pub token: Token,
    /// Where it goes.
    pub route: &'r Route,
    /// Failed tries before this one.
    pub attempt: u32,
    /// How long ago its claim was asked for.
    pub since: Duration,
}

/// What happens to a delivery on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is on its way to the worker.
    Sent,
    /// Its worker has brought it here from another replica.
    Adopted,
    /// The worker has it.
    Accepted,
    /// The worker has reported how it went.
    Reported,
}

impl Step {
    /// The name of the event.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Adopted => "adopted",
            Self::Accepted => "accepted",
            Self::Reported => "reported",
        }
    }
}

/// How a delivery or a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending<'c> {
    /// What became of it.
    pub outcome: &'static str,
    /// The class of its failure, where it failed. What a worker says beside it may hold data, and stays out.
    pub failure: Option<&'c str>,
}
