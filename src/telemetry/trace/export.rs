//! From spans that have ended to a collector: a queue with a bound that nobody waits for, and one loop that empties it.
//!
//! The SDK's own batches are sent from a thread that blocks; here they are sent on the runtime, so that one bound holds
//! for the way to a collector and for the last flush, and what is lost is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, InstrumentationScope, KeyValue, global};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::on::{SCOPE, Tracing};
use super::{Error, Settings, Spans};
use crate::outbound;

/// Spans that wait to be sent, at about a kilobyte each: some MiB at most, and a second of a busy replica.
const QUEUE: usize = 8192;
/// Spans in one request.
const BATCH: usize = 512;
/// What a span waits for others to go with.
const LINGER: Duration = Duration::from_millis(500);
/// One request, repeats included: a collector that hangs costs spans and nothing else.
const SEND: Duration = Duration::from_secs(5);
/// What the last spans get at the end of the program.
const FLUSH: Duration = Duration::from_secs(2);
/// An answer is a few bytes; more is not read.
const ANSWER_BYTES: usize = 64 * 1024;
/// Where OTLP over HTTP takes spans.
const PATH: &str = "/v1/traces";

/// The way to the collector, where there is one.
#[derive(Debug)]
pub struct Exporter {
    sending: JoinSet<()>,
    stop: CancellationToken,
}

impl Exporter {
    /// Starts to export, if there is somewhere to export to. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// What is wrong with the endpoint. A header in `OTEL_EXPORTER_OTLP_HEADERS` that is none is left out.
    pub fn start(settings: Option<&Settings>, spans: &Spans) -> Result<(Self, Tracing), Error> {
        let mut exporter = Self {
            sending: JoinSet::new(),
            stop: CancellationToken::new(),
        };
        let Some(settings) = settings else {
            return Ok((exporter, Tracing::default()));
        };
        let provider = exporter.open(settings, spans)?;
        let scope = InstrumentationScope::builder(SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let tracing = Tracing::new(provider.tracer_with_scope(scope));
        Ok((exporter, tracing))
    }

    fn open(&mut self, settings: &Settings, spans: &Spans) -> Result<SdkTracerProvider, Error> {
        let endpoint = settings.endpoint.trim_end_matches('/');
        let endpoint = if endpoint.ends_with(PATH) {
            endpoint.to_owned()
        } else {
            format!("{endpoint}{PATH}")
        };
        let collector = Collector {
            client: outbound::client(),
            fault: Arc::default(),
        };
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(&endpoint)
            .with_timeout(SEND)
            .with_http_client(collector.clone())
            .build()
            .map_err(|error| Error(error.to_string()))?;
        let resource = Resource::builder()
            .with_service_name(settings.service_name.clone())
            .with_attributes([
                KeyValue::new("service.instance.id", settings.instance.clone()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .build();
        exporter.set_resource(&resource);
        let (queue, waiting) = mpsc::channel(QUEUE);
        let line = Line {
            waiting,
            exporter,
            endpoint,
            fault: collector.fault,
            spans: spans.clone(),
            is_well: true,
        };
        self.sending.spawn(line.run(self.stop.clone()));
        let sampler = Sampler::TraceIdRatioBased(settings.sample_ratio);
        Ok(SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_resource(resource)
            .with_span_processor(Queue {
                queue,
                spans: spans.clone(),
                is_said: AtomicBool::new(false),
            })
            .build())
    }

    /// Sends what has ended so far, within a bound: a collector that hangs does not hold up the end of the program.
    pub async fn flush(mut self) {
        self.stop.cancel();
        let sent = tokio::time::timeout(FLUSH, self.sending.join_next()).await;
        if sent.is_err() {
            tracing::warn!("the last spans were not exported in time");
        }
    }
}

/// Has handlers of this process traced: their spans are exported to this collector.
///
/// # Errors
/// Those of [`Exporter::start`].
pub fn install(settings: &Settings) -> Result<Exporter, Error> {
    let mut exporter = Exporter {
        sending: JoinSet::new(),
        stop: CancellationToken::new(),
    };
    let provider = exporter.open(settings, &Spans::default())?;
    global::set_tracer_provider(provider);
    Ok(exporter)
}

/// Takes spans as they end.
#[derive(Debug)]
struct Queue {
    queue: mpsc::Sender<SpanData>,
    spans: Spans,
    is_said: AtomicBool,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.queue.try_send(span).is_ok() {
            return;
        }
        self.spans.dropped.inc();
        if !self.is_said.swap(true, Ordering::Relaxed) && !self.queue.is_closed() {
            tracing::warn!("more spans than the collector takes: some are dropped, no task waits");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Spans on their way.
struct Line {
    waiting: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    endpoint: String,
    /// Why the last request failed that did not come to an answer.
    fault: Arc<Mutex<Option<String>>>,
    spans: Spans,
    /// Whether the last request was answered with a yes.
    is_well: bool,
}

impl Line {
    /// Sends until it is stopped, and then what is left.
    async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while stop.run_until_cancelled(self.fill(&mut batch)).await == Some(true) {
            self.send(&mut batch).await;
        }
        self.waiting.close();
        loop {
            while batch.len() < BATCH
                && let Ok(span) = self.waiting.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() || !self.send(&mut batch).await {
                return;
            }
        }
    }

    /// Waits for a span, and a little for more. False: none will come.
    async fn fill(&mut self, batch: &mut Vec<SpanData>) -> bool {
        if batch.is_empty() && self.waiting.recv_many(batch, BATCH).await == 0 {
            return false;
        }
        let full = async {
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                if self.waiting.recv_many(batch, room).await == 0 {
                    return;
                }
            }
        };
        // Full, or late: both go.
        let _late = tokio::time::timeout(LINGER, full).await.is_err();
        true
    }

    /// Sends a batch. What is not taken is lost; that is said once, and once more when it is over.
    async fn send(&mut self, batch: &mut Vec<SpanData>) -> bool {
        let count = batch.len() as u64;
        let sending = self.exporter.export(std::mem::take(batch));
        let refused = match tokio::time::timeout(SEND, sending).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                let fault = self.fault.lock().take();
                Some(fault.map_or_else(|| error.to_string(), |fault| format!("{error}: {fault}")))
            }
            Err(_) => Some(format!("no answer within {} s", SEND.as_secs())),
        };
        let was_well = std::mem::replace(&mut self.is_well, refused.is_none());
        let endpoint = self.endpoint.as_str();
        match refused {
            None => {
                self.spans.exported.inc_by(count);
                if !was_well {
                    tracing::info!(endpoint, "spans are exported again");
                }
            }
            Some(error) => {
                self.spans.dropped.inc_by(count);
                if was_well {
                    tracing::warn!(endpoint, error, "spans are not exported and are dropped");
                }
            }
        }
        self.is_well
    }
}

/// The HTTP client of the exporter, which keeps to itself why a request failed: it is left here.
#[derive(Clone, Debug)]
struct Collector {
    client: outbound::Client,
    fault: Arc<Mutex<Option<String>>>,
}

#[tonic::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.client.request(request.map(Full::new)).await;
        let response = response.inspect_err(|error| {
            *self.fault.lock() = Some(outbound::sentence(error));
        })?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::Tracer as _;

    use super::*;

    /// A queue of this length that nobody empties, and where its spans begin.
    fn queue(length: usize, spans: &Spans) -> (SdkTracerProvider, mpsc::Receiver<SpanData>) {
        let (queue, waiting) = mpsc::channel(length);
        let processor = Queue {
            queue,
            spans: spans.clone(),
            is_said: AtomicBool::new(false),
        };
        let provider = SdkTracerProvider::builder();
        (provider.with_span_processor(processor).build(), waiting)
    }

    #[test]
    fn what_the_queue_does_not_hold_is_dropped_and_counted() {
        let spans = Spans::default();
        let (provider, mut waiting) = queue(2, &spans);
        let tracer = provider.tracer(SCOPE);
        for name in ["first", "second", "third", "fourth"] {
            drop(tracer.start(name));
        }
        assert_eq!((spans.exported.get(), spans.dropped.get()), (0, 2));
        assert_eq!(waiting.try_recv().unwrap().name, "first");
        drop(tracer.start("fifth"));
        assert_eq!(waiting.try_recv().unwrap().name, "second");
        assert_eq!(waiting.try_recv().unwrap().name, "fifth");
        assert_eq!(spans.dropped.get(), 2);
    }
}
