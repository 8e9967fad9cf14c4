//! `[tracing]`: where spans go, and which.

use super::kinds::{COLLECTOR, NAME, RATIO};
use super::reader::Reader;
use crate::telemetry::trace::BUILT_IN;

/// `[tracing]`: where spans go, and which.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracing {
    /// The collector that takes OTLP over HTTP; none: there are no spans.
    pub endpoint: Option<String>,
    /// The part of the traces that begin here that is recorded.
    pub sample_ratio: f64,
    /// What replicas are called among other services.
    pub service_name: String,
}

impl Tracing {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let tracing = Self {
            endpoint: reader.take("tracing.endpoint", None, &COLLECTOR),
            sample_ratio: reader.take("tracing.sample_ratio", 1.0, &RATIO),
            service_name: reader.take("tracing.service_name", "fencepost".to_owned(), &NAME),
        };
        // Said at the start, or spans would be missed when they are needed.
        reader.relate(
            BUILT_IN || tracing.endpoint.is_none(),
            "tracing.endpoint",
            "needs a program that is built with traces: this one is without the cargo feature `otel`",
        );
        tracing
    }
}
