//! The spans themselves.

use std::future::Future;
use std::sync::Arc;

use opentelemetry::trace::{
    FutureExt as _, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _,
    TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, SpanId, TraceFlags, TraceId, global, time};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use parking_lot::Mutex;

use super::{Ending, Incoming, Outgoing, Step};
use crate::domain::id::TaskId;
use crate::domain::trace_context::TraceParent;
use crate::proto::worker::Task;

/// The name of what is instrumented.
pub(super) const SCOPE: &str = "fencepost";

/// What a delivery comes to that this replica writes nothing about: it is left to others, or has been theirs already.
const LEFT: &str = "left";

/// Begins spans, where there is somewhere to export them to.
#[derive(Clone, Debug, Default)]
pub struct Tracing(Option<SdkTracer>);

impl Tracing {
    pub(super) fn new(tracer: SdkTracer) -> Self {
        Self(Some(tracer))
    }

    /// Whether spans are exported at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The span of tasks that come in, below the span of whoever sends them.
    pub fn enqueue<'t>(
        &self,
        parent: Option<TraceParent>,
        incoming: impl FnOnce() -> Incoming<'t>,
    ) -> EnqueueSpan {
        let Some(tracer) = &self.0 else {
            return EnqueueSpan {
                context: parent,
                span: None,
            };
        };
        let incoming = incoming();
        let builder = SpanBuilder::from_name(named(incoming.operation, incoming.task_queue))
            .with_kind(SpanKind::Producer);
        let mut span = tracer.build_with_context(builder, &below(parent));
        let context = context_of(span.span_context());
        if span.is_recording() {
            span.set_attributes(operation(incoming.operation, "send"));
            let texts = [
                ("messaging.destination.name", incoming.task_queue),
                ("fencepost.namespace", incoming.namespace),
                ("fencepost.task_type", incoming.task_type),
            ];
            let texts = texts
                .into_iter()
                .filter_map(|(key, text)| Some((key, text?)));
            span.set_attributes(texts.map(|(key, text)| KeyValue::new(key, text.to_owned())));
            if incoming.tasks != 1 {
                span.set_attribute(number("messaging.batch.message_count", incoming.tasks));
            }
        }
        EnqueueSpan {
            context,
            span: Some(span),
        }
    }

    /// The span of a delivery, below that which the task carries; from now on it carries this one.
    pub fn delivery<'r>(
        &self,
        outgoing: impl FnOnce() -> Outgoing<'r>,
        context: &mut String,
    ) -> DeliverySpan {
        let Some(tracer) = &self.0 else {
            return DeliverySpan::default();
        };
        let Outgoing {
            token,
            route,
            attempt,
            since,
        } = outgoing();
        let now = time::now();
        let builder = SpanBuilder::from_name(named("deliver", Some(&route.task_queue)))
            .with_kind(SpanKind::Consumer)
            .with_start_time(now.checked_sub(since).unwrap_or(now));
        let mut span = tracer.build_with_context(builder, &below(TraceParent::parse(context)));
        carry(context, span.span_context());
        if !span.is_recording() {
            return DeliverySpan::default();
        }
        span.set_attributes(operation("deliver", "process"));
        span.set_attributes(task(
            token.id,
            (&route.namespace, &route.task_queue, &route.task_type),
            (attempt.saturating_add(1), i64::from(token.fence)),
        ));
        DeliverySpan(Some(Arc::new(Open(Mutex::new(span)))))
    }
}

/// The span of tasks that come in.
#[derive(Debug)]
pub struct EnqueueSpan {
    context: Option<TraceParent>,
    span: Option<Span>,
}

impl EnqueueSpan {
    /// What the tasks carry.
    #[must_use]
    pub const fn context(&self) -> Option<TraceParent> {
        self.context
    }

    /// Ends it with what the database has said: the task where it was one alone, or the code of the refusal.
    pub fn end(self, answer: impl FnOnce() -> Result<Option<TaskId>, &'static str>) {
        let Some(mut span) = self.span.filter(opentelemetry::trace::Span::is_recording) else {
            return;
        };
        match answer() {
            Ok(Some(task)) => span.set_attribute(message(task)),
            Ok(None) => {}
            Err(code) => fail(&mut span, code.to_owned()),
        }
        span.end();
    }
}

/// The span of one delivery, from its claim until what came of it is stored. Clones are of the same one; when the last
/// is dropped without an end, the delivery was left to others.
#[derive(Clone, Debug, Default)]
pub struct DeliverySpan(Option<Arc<Open>>);

#[derive(Debug)]
struct Open(Mutex<Span>);

impl DeliverySpan {
    /// Whether anybody will read it.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// The worker that it goes to.
    pub fn worker(&self, identity: &str) {
        if let Some(open) = &self.0 {
            let worker = KeyValue::new("fencepost.worker", identity.to_owned());
            open.0.lock().set_attribute(worker);
        }
    }

    /// Something has happened to it.
    pub fn step(&self, step: Step) {
        if let Some(open) = &self.0 {
            open.0.lock().add_event(step.name(), Vec::new());
        }
    }

    /// The worker has reported: the span goes on with the report.
    #[must_use]
    pub fn reported(&mut self) -> Self {
        self.step(Step::Reported);
        std::mem::take(self)
    }

    /// What came of it is stored. Only the first end counts.
    pub fn end(&self, ending: Ending<'_>) {
        if let Some(open) = &self.0 {
            open.0.lock().end_with(ending);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.get_mut().end_with(Ending {
            outcome: LEFT,
            failure: None,
        });
    }
}

trait EndWith {
    fn end_with(&mut self, ending: Ending<'_>);
}

impl EndWith for Span {
    fn end_with(&mut self, ending: Ending<'_>) {
        if !self.is_recording() {
            return;
        }
        self.set_attribute(KeyValue::new("fencepost.outcome", ending.outcome));
        if let Some(class) = ending.failure {
            fail(self, class.to_owned());
        }
        self.end();
    }
}

/// The span around a handler, exported by whatever the worker's program has installed. Dropped without an end, the
/// handler has panicked or was aborted.
#[derive(Debug)]
pub struct HandlerSpan(Context);

impl HandlerSpan {
    /// Begins it below the delivery's; from now on the task carries this one.
    #[must_use]
    pub fn begin(of: &mut Task) -> Self {
        let parent = below(TraceParent::parse(&of.trace_context));
        let builder = SpanBuilder::from_name(named("handle", Some(&of.task_queue)))
            .with_kind(SpanKind::Consumer);
        let mut span = global::tracer(SCOPE).build_with_context(builder, &parent);
        carry(&mut of.trace_context, span.span_context());
        if span.is_recording() {
            span.set_attributes(operation("handle", "process"));
            span.set_attributes(task(
                of.task_id,
                (&of.namespace, &of.task_queue, &of.task_type),
                (of.attempt, of.fence),
            ));
        }
        Self(parent.with_span(span))
    }

    /// The handler, with this span as the current one of its context.
    pub fn around<F: Future>(&self, handler: F) -> impl Future<Output = F::Output> + use<F> {
        handler.with_context(self.0.clone())
    }

    /// The handler has answered.
    pub fn end<'c>(self, ending: impl FnOnce() -> Ending<'c>) {
        if self.0.span().is_recording() {
            self.finish(ending());
        }
    }

    fn finish(&self, ending: Ending<'_>) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("fencepost.outcome", ending.outcome));
        if let Some(class) = ending.failure {
            span.set_attribute(KeyValue::new("error.type", class.to_owned()));
            span.set_status(Status::error(class.to_owned()));
        }
        span.end();
    }
}

impl Drop for HandlerSpan {
    fn drop(&mut self) {
        if self.0.span().is_recording() {
            let class = if std::thread::panicking() {
                "panic"
            } else {
                "aborted"
            };
            self.finish(Ending {
                outcome: "failed",
                failure: Some(class),
            });
        }
    }
}

/// `deliver emails`: few names, so that they can be grouped by.
fn named(operation: &str, task_queue: Option<&str>) -> String {
    match task_queue {
        Some(queue) => format!("{operation} {queue}"),
        None => operation.to_owned(),
    }
}

fn operation(name: &'static str, kind: &'static str) -> [KeyValue; 3] {
    [
        KeyValue::new("messaging.system", SCOPE),
        KeyValue::new("messaging.operation.name", name),
        KeyValue::new("messaging.operation.type", kind),
    ]
}

/// What a delivery and its handler have in common.
fn task(
    id: TaskId,
    (namespace, task_queue, task_type): (&str, &str, &str),
    (attempt, fence): (u32, i64),
) -> [KeyValue; 6] {
    [
        message(id),
        KeyValue::new("messaging.destination.name", task_queue.to_owned()),
        KeyValue::new("fencepost.namespace", namespace.to_owned()),
        KeyValue::new("fencepost.task_type", task_type.to_owned()),
        KeyValue::new("fencepost.attempt", i64::from(attempt)),
        KeyValue::new("fencepost.fence", fence),
    ]
}

fn message(id: TaskId) -> KeyValue {
    KeyValue::new("messaging.message.id", id.to_string())
}

fn number(key: &'static str, number: usize) -> KeyValue {
    KeyValue::new(key, i64::try_from(number).unwrap_or(i64::MAX))
}

fn fail(span: &mut Span, class: String) {
    span.set_attribute(KeyValue::new("error.type", class.clone()));
    span.set_status(Status::error(class));
}

/// The context of somebody else's span, to begin one below it; without one a trace begins.
fn below(parent: Option<TraceParent>) -> Context {
    let Some(parent) = parent else {
        return Context::new();
    };
    Context::new().with_remote_span_context(SpanContext::new(
        TraceId::from(parent.trace_id),
        SpanId::from(parent.parent_id),
        TraceFlags::new(parent.flags),
        true,
        TraceState::NONE,
    ))
}

fn context_of(span: &SpanContext) -> Option<TraceParent> {
    span.is_valid().then(|| TraceParent {
        trace_id: u128::from_be_bytes(span.trace_id().to_bytes()),
        parent_id: u64::from_be_bytes(span.span_id().to_bytes()),
        flags: span.trace_flags().to_u8(),
    })
}

/// Has a task carry this span, if it is one.
fn carry(context: &mut String, span: &SpanContext) {
    if let Some(own) = context_of(span) {
        *context = own.to_string();
    }
}
