//! The one error of all doors, with a stable code; docs/errors.md says what to do about each.

mod codes;

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tonic::metadata::MetadataMap;

use crate::dispatch::direct::DirectError;
use crate::domain::outcome::Failure;
use crate::store;
use crate::store::enqueue::EnqueueError;

use codes::INTERNAL;
pub use codes::{CODES, Code, Kind, status_of};

/// Why a call has no result, for whoever made it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What it is.
    pub code: &'static Code,
    /// The name of the rule where it is a finer one than the code's.
    pub slug: Cow<'static, str>,
    /// The field at fault, when there is one.
    pub field: Option<String>,
    /// The worker's name for what went wrong, where a worker failed.
    pub class: Option<String>,
    /// A sentence for people.
    pub message: String,
}

impl Error {
    /// An error of this code; one that is not in [`CODES`] counts as internal.
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        let code = CODES.iter().find(|known| known.code == code);
        let code = code.unwrap_or(&INTERNAL);
        Self {
            code,
            slug: code.slug.into(),
            field: None,
            class: None,
            message: message.into(),
        }
    }

    /// Names the field at fault.
    pub(crate) fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// A worker's failure.
    pub(crate) fn of_worker(code: &str, failure: Failure) -> Self {
        Self {
            class: Some(failure.class),
            ..Self::new(code, failure.message)
        }
    }

    pub(crate) fn invalid_body(message: impl Into<String>) -> Self {
        Self::new("FP-101", message)
    }

    pub(crate) fn unknown_field(field: &str) -> Self {
        Self::new("FP-102", format!("there is no field {field:?} here.")).at(field)
    }

    pub(crate) fn invalid_value(field: &str, message: impl Into<String>) -> Self {
        Self::new("FP-103", message).at(field)
    }

    pub(crate) fn no_task(id: i64) -> Self {
        Self::new("FP-104", format!("there is no task {id}.")).at("task_id")
    }

    pub(crate) fn task_left(id: i64) -> Self {
        let message =
            format!("there is no task {id} any more: tasks as old as this one have left history.");
        Self {
            slug: "left_history".into(),
            ..Self::new("FP-104", message).at("task_id")
        }
    }

    /// Whoever looks after this replica has to know of what the caller can't mend.
    fn note(&self) {
        if self.code.kind == Kind::Internal {
            tracing::warn!(reason = %self.message, "answers FP-114");
        }
    }

    /// The status over HTTP.
    pub fn http_status(&self) -> StatusCode {
        status_of(self.code.kind)
    }

    /// The status over gRPC.
    pub fn grpc_code(&self) -> tonic::Code {
        match self.code.kind {
            Kind::Invalid | Kind::MediaType => tonic::Code::InvalidArgument,
            Kind::Forbidden => tonic::Code::PermissionDenied,
            Kind::NotFound => tonic::Code::NotFound,
            Kind::Method => tonic::Code::Unimplemented,
            Kind::Precondition | Kind::Rejected => tonic::Code::FailedPrecondition,
            Kind::Conflict | Kind::Failed => tonic::Code::Aborted,
            Kind::TooLarge | Kind::Exhausted => tonic::Code::ResourceExhausted,
            Kind::Unavailable => tonic::Code::Unavailable,
            Kind::Timeout => tonic::Code::DeadlineExceeded,
            Kind::UnknownOutcome => tonic::Code::Unknown,
            Kind::Internal => tonic::Code::Internal,
        }
    }

    /// Whether the caller is at fault, and the same call will fail again.
    pub fn is_refusal(&self) -> bool {
        !matches!(
            self.code.kind,
            Kind::Conflict
                | Kind::Exhausted
                | Kind::Unavailable
                | Kind::Timeout
                | Kind::Failed
                | Kind::UnknownOutcome
                | Kind::Internal
        )
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        use store::Error::{Conflict, Internal, NotMigrated, Refused, Settings, Unavailable};
        match error {
            Refused(refusal) => {
                let code = refusal.code.replacen("FP", "FP-", 1);
                Self {
                    slug: refusal.slug.into(),
                    field: refusal.field,
                    ..Self::new(&code, refusal.message)
                }
            }
            Unavailable(_) => Self::new("FP-110", format!("{error}.")),
            Conflict(_) => Self::new("FP-112", format!("{error}.")),
            NotMigrated(_) => Self::new("FP-113", format!("{error}.")),
            Internal(_) | Settings(_) => Self::new(INTERNAL.code, format!("{error}.")),
        }
    }
}

impl From<DirectError> for Error {
    fn from(error: DirectError) -> Self {
        let sentence = format!("{error}.");
        match error {
            DirectError::Full => Self::new("FP-120", sentence),
            DirectError::Draining => Self::new("FP-121", sentence),
            DirectError::NobodyFree => Self::new("FP-122", sentence),
            DirectError::TimedOut => Self::new("FP-109", sentence),
            DirectError::Lost => Self::new("FP-125", sentence),
            DirectError::Failed(failure) => Self::of_worker("FP-123", failure),
            DirectError::Rejected(failure) => Self::of_worker("FP-124", failure),
            DirectError::Unservable(failure) => Self::new("FP-126", failure.message).at("payload"),
            DirectError::Store(error) => error.into(),
        }
    }
}

impl From<EnqueueError> for Error {
    fn from(error: EnqueueError) -> Self {
        match error {
            EnqueueError::Store(error) => error.into(),
            EnqueueError::UnknownOutcome(_) => Self::new("FP-111", format!("{error}.")),
        }
    }
}

/// Problem details (RFC 9457), with our code, its name, the field and the worker's class as extensions.
#[derive(Serialize)]
struct Problem<'e> {
    r#type: String,
    title: String,
    status: u16,
    detail: &'e str,
    code: &'e str,
    slug: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'e str>,
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.note();
        let status = self.http_status();
        let problem = Problem {
            r#type: format!("urn:fencepost:error:{}", self.code.code),
            title: self.slug.replace('_', " "),
            status: status.as_u16(),
            detail: &self.message,
            code: self.code.code,
            slug: &self.slug,
            field: self.field.as_deref(),
            class: self.class.as_deref(),
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        (status, [(header::CONTENT_TYPE, kind)], body).into_response()
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        error.note();
        let mut trailers = MetadataMap::new();
        if let Ok(code) = error.code.code.parse() {
            trailers.insert("fencepost-code", code);
        }
        if let Some(Ok(field)) = error.field.as_deref().map(str::parse) {
            trailers.insert("fencepost-field", field);
        }
        // A trailer is ASCII; the class is a worker's text.
        if let Some(Ok(class)) = error.class.as_deref().map(str::parse) {
            trailers.insert("fencepost-class", class);
        }
        tonic::Status::with_metadata(error.grpc_code(), error.message, trailers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line a code: code, name, status over HTTP, status over gRPC, and prose.
    #[test]
    fn the_documentation_lists_every_code_with_its_name_and_statuses() {
        let documented: Vec<Vec<&str>> = include_str!("../../docs/errors.md")
            .lines()
            .filter(|line| line.starts_with("| FP-"))
            .map(|line| line.split('|').map(str::trim).skip(1).take(4).collect())
            .collect();
        let known: Vec<Vec<String>> = CODES
            .iter()
            .map(|known| {
                let error = Error::new(known.code, "");
                let grpc = format!("{:?}", error.grpc_code());
                let status = error.http_status().as_u16().to_string();
                vec![known.code.into(), known.slug.into(), status, grpc]
            })
            .collect();
        assert_eq!(documented, known);
    }

    #[test]
    fn a_refusal_of_the_database_keeps_its_code_field_and_finer_name() {
        let refusal = store::Refusal {
            code: "FP002".into(),
            slug: "payload_missing".into(),
            field: Some("payload".into()),
            message: "payload must not be null.".into(),
        };
        let error = Error::from(store::Error::Refused(refusal));
        assert_eq!(error.code.code, "FP-002");
        assert_eq!(error.slug, "payload_missing");
        let status = tonic::Status::from(error);
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert_eq!(status.metadata().get("fencepost-code").unwrap(), "FP-002");
        assert_eq!(status.metadata().get("fencepost-field").unwrap(), "payload");
    }
}
