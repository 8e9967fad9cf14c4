use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::eventually;

/// A span is exported within this time, unless something is broken.
const STEP: Duration = Duration::from_secs(20);

/// The kinds of spans, as OTLP numbers them.
pub const PRODUCER: i32 = 4;
pub const CONSUMER: i32 = 5;
/// The status of a span that failed, as OTLP numbers it; others have none.
pub const ERROR: i32 = 2;

/// The part of OTLP that tests look at, by the numbers of its fields.
#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Flag(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Real(f64),
}

/// A span as it came in; ids in hex, as traceparents have them.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub service: String,
    pub trace: String,
    pub id: String,
    /// Empty for the first of a trace.
    pub parent: String,
    pub name: String,
    pub kind: i32,
    pub nanoseconds: u64,
    pub attributes: BTreeMap<String, String>,
    pub events: Vec<String>,
    pub status: i32,
    pub status_message: String,
}

impl Span {
    pub fn at(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    /// What a child of this span would be sent.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }
}

/// What a collector has been sent: the spans, and the bytes that they came as.
#[derive(Debug, Default)]
struct Taken {
    spans: Vec<Span>,
    bytes: Vec<u8>,
    /// The values of the header `authorization`.
    authorizations: Vec<String>,
}

/// A collector that takes OTLP over HTTP, as protobuf.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    _serving: JoinSet<()>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let taken: Arc<Mutex<Taken>> = Arc::default();
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(Arc::clone(&taken));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            taken,
            _serving: serving,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every span so far.
    pub fn spans(&self) -> Vec<Span> {
        self.taken.lock().spans.clone()
    }

    /// Waits until so many spans are there that `look` likes; answers all of those, oldest first.
    pub async fn wait(&self, number: usize, look: impl Fn(&Span) -> bool) -> Vec<Span> {
        let end = tokio::time::Instant::now() + STEP;
        let found = eventually(STEP * 2, async || {
            let found: Vec<Span> = self.spans().into_iter().filter(&look).collect();
            let late = tokio::time::Instant::now() > end;
            assert!(!late, "{} of {number}: {:#?}", found.len(), self.spans());
            (found.len() >= number).then_some(found)
        });
        found.await
    }

    /// Waits for the deliveries of a task, so many.
    pub async fn deliveries(&self, task: i64, number: usize) -> Vec<Span> {
        let task = task.to_string();
        let is_its = |span: &Span| span.kind == CONSUMER && span.at("messaging.message.id") == task;
        self.wait(number, |span| {
            is_its(span) && span.name.starts_with("deliver")
        })
        .await
    }

    /// Whether any span had this in it, whatever the field.
    pub fn has_seen(&self, text: &str) -> bool {
        let taken = self.taken.lock();
        taken
            .bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    }

    pub fn authorizations(&self) -> Vec<String> {
        self.taken.lock().authorizations.clone()
    }
}

async fn take(
    State(taken): State<Arc<Mutex<Taken>>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let export = Export::decode(body.clone()).unwrap();
    let mut taken = taken.lock();
    taken.bytes.extend_from_slice(&body);
    if let Some(authorization) = headers.get("authorization") {
        let authorization = authorization.to_str().unwrap().to_owned();
        taken.authorizations.push(authorization);
    }
    for resource in export.resources {
        let of = texts(resource.resource.unwrap_or_default().attributes);
        let service = of.get("service.name").cloned().unwrap_or_default();
        let spans = resource.scopes.into_iter().flat_map(|scope| scope.spans);
        taken.spans.extend(spans.map(|span| read(span, &service)));
    }
    StatusCode::OK
}

fn read(span: WireSpan, service: &str) -> Span {
    let status = span.status.unwrap_or_default();
    Span {
        service: service.to_owned(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        name: span.name,
        kind: span.kind,
        nanoseconds: span.end - span.start,
        attributes: texts(span.attributes),
        events: span.events.into_iter().map(|event| event.name).collect(),
        status: status.code,
        status_message: status.message,
    }
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::Text(text)) => text,
        Some(Value::Flag(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Real(real)) => real.to_string(),
        None => String::new(),
    };
    let attributes = attributes.into_iter();
    attributes.map(|one| (one.key, text(one.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
