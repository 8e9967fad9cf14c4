//! The fields of each message, in the order of `worker.proto`.

use super::super::worker as proto;
use super::Fields;
use proto::dispatcher_frame::Frame as Down;
use proto::result::Outcome;
use proto::worker_frame::Frame as Up;

const REFUSED_REASONS: &[&str] = &["", "no_slot", "draining", "unknown_type"];
const FAILURE_KINDS: &[&str] = &["", "retryable", "terminal", "cancelled"];
const VERDICTS: &[&str] = &["", "recorded", "superseded"];

/// A choice: its arms with their names and fields. A function can't be handed the arms of an enum.
macro_rules! choice {
    ($fields:ident, $slot:expr, $choice:ident: $($name:literal $arm:ident $describe:expr),+ $(,)?) => {$(
        let mut message = match $slot.take() {
            Some($choice::$arm(message)) => Some(message),
            other => {
                $slot = other;
                None
            }
        };
        $fields.arm($name, &mut message, $describe);
        if let Some(message) = message {
            if $slot.is_some() {
                $fields.refuse($name, "stands beside another one of which there is one at most");
            }
            $slot = Some($choice::$arm(message));
        }
    )+};
}

pub(super) fn worker_frame<F: Fields>(f: &mut F, frame: &mut Option<Up>) {
    choice!(f, *frame, Up:
        "register" Register register,
        "accepted" Accepted |f, m| f.value("tokens", &mut m.tokens),
        "refused" Refused refused,
        "results" Results |f, m| f.list("results", &mut m.results, result),
        "progress" Progress progress,
        "ping" Ping |f, m| f.value("sequence", &mut m.sequence),
        "pong" Pong |f, m| f.value("sequence", &mut m.sequence),
        "drain" Drain |_, _| {},
    );
}

pub(super) fn dispatcher_frame<F: Fields>(f: &mut F, frame: &mut Option<Down>) {
    choice!(f, *frame, Down:
        "welcome" Welcome welcome,
        "tasks" Tasks |f, m| f.list("tasks", &mut m.tasks, task),
        "acks" Acks |f, m| f.list("acks", &mut m.acks, result_ack),
        "cancel" Cancel cancel,
        "ping" Ping |f, m| f.value("sequence", &mut m.sequence),
        "pong" Pong |f, m| f.value("sequence", &mut m.sequence),
        "go_away" GoAway go_away,
    );
}

fn register<F: Fields>(f: &mut F, m: &mut proto::Register) {
    f.value("protocol", &mut m.protocol);
    f.value("identity", &mut m.identity);
    f.value("namespaces", &mut m.namespaces);
    f.value("task_queue", &mut m.task_queue);
    f.value("task_types", &mut m.task_types);
    f.value("node", &mut m.node);
    f.value("slots", &mut m.slots);
    f.value("max_frame_bytes", &mut m.max_frame_bytes);
    f.value("build_id", &mut m.build_id);
    f.value("capabilities", &mut m.capabilities);
    f.value("instance", &mut m.instance);
    f.list("resume", &mut m.resume, |f, m: &mut proto::Held| {
        f.value("task_id", &mut m.task_id);
        f.value("token", &mut m.token);
    });
}

fn refused<F: Fields>(f: &mut F, m: &mut proto::Refused) {
    f.value("tokens", &mut m.tokens);
    f.word("reason", &mut m.reason, REFUSED_REASONS);
}

fn result<F: Fields>(f: &mut F, m: &mut proto::Result) {
    f.value("token", &mut m.token);
    let fault = f.contained(|f| {
        choice!(f, m.outcome, Outcome:
            "succeeded" Succeeded |f, m| f.body(&mut m.payload, &mut m.content_type),
            "failed" Failed failed,
            "snoozed" Snoozed |f, m| f.value("after_ms", &mut m.after_ms),
        );
    });
    let Some(fault) = fault else { return };
    if m.token.is_empty() {
        return f.refuse("token", "is missing");
    }
    m.outcome = Some(Outcome::Failed(proto::Failed {
        kind: proto::FailureKind::Terminal.into(),
        class: "result_invalid".to_owned(),
        message: format!("{fault}."),
        retry_after_ms: None,
    }));
}

fn failed<F: Fields>(f: &mut F, m: &mut proto::Failed) {
    f.word("kind", &mut m.kind, FAILURE_KINDS);
    f.value("class", &mut m.class);
    f.value("message", &mut m.message);
    f.value("retry_after_ms", &mut m.retry_after_ms);
}

fn progress<F: Fields>(f: &mut F, m: &mut proto::Progress) {
    f.value("token", &mut m.token);
    f.value("text", &mut m.text);
    f.value("percent", &mut m.percent);
}

fn welcome<F: Fields>(f: &mut F, m: &mut proto::Welcome) {
    f.value("worker_id", &mut m.worker_id);
    f.value("session_id", &mut m.session_id);
    f.value("replica", &mut m.replica);
    f.value("slots", &mut m.slots);
    f.value("ping_interval_ms", &mut m.ping_interval_ms);
    f.value("silence_window_ms", &mut m.silence_window_ms);
    f.value("max_frame_bytes", &mut m.max_frame_bytes);
    f.value("resumed", &mut m.resumed);
    f.value("abandoned", &mut m.abandoned);
    f.value("max_result_bytes", &mut m.max_result_bytes);
}

pub(super) fn task<F: Fields>(f: &mut F, m: &mut proto::Task) {
    f.value("token", &mut m.token);
    f.value("task_id", &mut m.task_id);
    f.value("namespace", &mut m.namespace);
    f.value("task_queue", &mut m.task_queue);
    f.value("task_type", &mut m.task_type);
    f.value("node", &mut m.node);
    f.body(&mut m.payload, &mut m.content_type);
    f.value("attempt", &mut m.attempt);
    f.value("max_attempts", &mut m.max_attempts);
    f.value("labels", &mut m.labels);
    f.value("run_timeout_ms", &mut m.run_timeout_ms);
    f.value("heartbeat_timeout_ms", &mut m.heartbeat_timeout_ms);
    f.value("workflow_id", &mut m.workflow_id);
    f.value("run_id", &mut m.run_id);
    f.value("ordinal", &mut m.ordinal);
    f.value("idempotency_key", &mut m.idempotency_key);
    f.value("fence", &mut m.fence);
    f.value("trace_context", &mut m.trace_context);
}

fn result_ack<F: Fields>(f: &mut F, m: &mut proto::ResultAck) {
    f.value("token", &mut m.token);
    f.word("verdict", &mut m.verdict, VERDICTS);
}

fn cancel<F: Fields>(f: &mut F, m: &mut proto::Cancel) {
    f.value("tokens", &mut m.tokens);
    f.value("reason", &mut m.reason);
}

fn go_away<F: Fields>(f: &mut F, m: &mut proto::GoAway) {
    f.value("within_ms", &mut m.within_ms);
    f.value("reason", &mut m.reason);
}
