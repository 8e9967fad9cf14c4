//! The codes that there are, and what kind of failure each one is.

use axum::http::StatusCode;

/// What kind of failure a code is, which decides its status over HTTP and gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The same call will always fail.
    Invalid,
    /// The settings keep this from everybody who comes in here, or the page that asks is not ours.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The path exists, for other methods.
    Method,
    /// More bytes than a request may have.
    TooLarge,
    /// The body is of a type that this call does not read.
    MediaType,
    /// The state of things forbids it.
    Precondition,
    /// Somebody else was in the way; nothing was written, and a later call may succeed.
    Conflict,
    /// More of this at once than a replica serves; a later call may succeed.
    Exhausted,
    /// A later call may succeed.
    Unavailable,
    /// No answer in time; a write may have happened.
    Timeout,
    /// The worker's own failure, which another call may mend.
    Failed,
    /// The worker's own failure, which no call like this can mend.
    Rejected,
    /// A write that can't be repeated safely may have happened.
    UnknownOutcome,
    /// A defect, or rights that are missing.
    Internal,
}

/// A stable code and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// `FP-001` and so on: `FP-0nn` are the database's refusals (SQLSTATE `FP0nn`), `FP-1nn` ours.
    pub code: &'static str,
    /// The same in words. Where a code of the database has two, the refusal says which.
    pub slug: &'static str,
    /// Decides the status.
    pub kind: Kind,
}

const fn code(code: &'static str, slug: &'static str, kind: Kind) -> Code {
    Code { code, slug, kind }
}

pub(super) const INTERNAL: Code = code("FP-114", "internal", Kind::Internal);

/// Every code that there is, in order.
pub const CODES: &[Code] = &[
    code("FP-001", "invalid_name", Kind::Invalid),
    code("FP-002", "payload_too_large", Kind::Invalid),
    code("FP-003", "invalid_json", Kind::Invalid),
    code("FP-004", "invalid_content_type", Kind::Invalid),
    code("FP-005", "invalid_delay", Kind::Invalid),
    code("FP-006", "invalid_priority", Kind::Invalid),
    code("FP-007", "invalid_limit", Kind::Invalid),
    code("FP-008", "invalid_labels", Kind::Invalid),
    code("FP-009", "unknown_option", Kind::Invalid),
    code("FP-010", "invalid_batch", Kind::Invalid),
    code("FP-011", "invalid_settle", Kind::Invalid),
    code("FP-012", "superseded", Kind::Precondition),
    code("FP-013", "cancel_requested", Kind::Precondition),
    code("FP-014", "invalid_token", Kind::Invalid),
    code("FP-015", "queue_not_declared", Kind::Precondition),
    code("FP-016", "result_too_large", Kind::Invalid),
    code("FP-017", "invalid_placement", Kind::Invalid),
    code("FP-018", "invalid_policy", Kind::Invalid),
    code("FP-019", "invalid_address", Kind::Invalid),
    code("FP-020", "not_paused", Kind::NotFound),
    code("FP-030", "invalid_mode", Kind::Invalid),
    code("FP-031", "workflow_over", Kind::Precondition),
    code("FP-032", "workflow_not_found", Kind::NotFound),
    code("FP-033", "invalid_continuation", Kind::Invalid),
    code("FP-034", "member_exists", Kind::Precondition),
    code("FP-035", "invalid_rerun", Kind::Invalid),
    code("FP-036", "history_gone", Kind::Precondition),
    code("FP-040", "invalid_filter", Kind::Invalid),
    code("FP-041", "filter_empty", Kind::Invalid),
    code("FP-042", "invalid_redrive", Kind::Invalid),
    code("FP-043", "redrive_over", Kind::Precondition),
    code("FP-044", "invalid_webhook", Kind::Invalid),
    code("FP-060", "invalid_weight", Kind::Invalid),
    code("FP-061", "invalid_quota", Kind::Invalid),
    code("FP-062", "invalid_rate", Kind::Invalid),
    code("FP-063", "invalid_burst", Kind::Invalid),
    code("FP-064", "invalid_key_limit", Kind::Invalid),
    code("FP-101", "invalid_body", Kind::Invalid),
    code("FP-102", "unknown_field", Kind::Invalid),
    code("FP-103", "invalid_value", Kind::Invalid),
    code("FP-104", "task_not_found", Kind::NotFound),
    code("FP-105", "body_too_large", Kind::TooLarge),
    code("FP-106", "unknown_path", Kind::NotFound),
    code("FP-107", "method_not_allowed", Kind::Method),
    code("FP-108", "unsupported_media_type", Kind::MediaType),
    code("FP-109", "timed_out", Kind::Timeout),
    code("FP-110", "unavailable", Kind::Unavailable),
    code("FP-111", "unknown_outcome", Kind::UnknownOutcome),
    code("FP-112", "conflict", Kind::Conflict),
    code("FP-113", "not_migrated", Kind::Unavailable),
    INTERNAL,
    code("FP-115", "too_many_waits", Kind::Exhausted),
    code("FP-116", "payloads_hidden", Kind::Forbidden),
    code("FP-117", "too_many_listeners", Kind::Exhausted),
    code("FP-118", "other_site", Kind::Forbidden),
    code("FP-120", "too_many_requests", Kind::Exhausted),
    code("FP-121", "draining", Kind::Unavailable),
    code("FP-122", "nobody_free", Kind::Timeout),
    code("FP-123", "task_failed", Kind::Failed),
    code("FP-124", "task_rejected", Kind::Rejected),
    code("FP-125", "connection_lost", Kind::UnknownOutcome),
    code("FP-126", "frame_too_large", Kind::TooLarge),
    code("FP-130", "dead_letter_not_found", Kind::NotFound),
    code("FP-131", "redrive_not_found", Kind::NotFound),
];

/// The status of a kind of failure over HTTP.
#[must_use]
pub fn status_of(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::Precondition | Kind::Conflict => StatusCode::CONFLICT,
        Kind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Kind::Failed | Kind::Rejected => StatusCode::UNPROCESSABLE_ENTITY,
        // Not 502 to 504: clients and proxies repeat those unasked.
        Kind::UnknownOutcome | Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
