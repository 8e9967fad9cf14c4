//! `/openapi.json`: the contract of this door, for generators of clients and for people.
//!
//! Answers are described by the types that are written, bodies by types of their own in [`bodies`], since a body is
//! taken apart without being parsed; each operation names every code that it can refuse with. A test holds the
//! document against the router, against the readers and against docs/errors.md.

mod bodies;
mod dead_letters;
mod operation;
mod operators;
mod tasks;
mod workflows;

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use utoipa::ToSchema as _;
use utoipa::openapi::{Components, Info, License, OpenApi, Paths, RefOr, Schema, Tag};

use operation::{Operation, Problem};

/// What operations are about, in the order of the document.
const TAGS: [(&str, &str); 9] = [
    (
        "tasks",
        "Enqueue tasks, look at them, wait for them, cancel them.",
    ),
    (
        "direct",
        "Have a connected worker do something while the caller waits. Nothing is stored.",
    ),
    ("workflows", "Groups of tasks that end together."),
    ("queues", "Where tasks wait, and what nobody serves."),
    ("namespaces", "Tenants and their settings."),
    ("pauses", "Keep tasks from starting."),
    (
        "dead letters",
        "Tasks that failed for good: redrive or discard them.",
    ),
    (
        "workers",
        "Who is connected, and orders to take nothing new.",
    ),
    ("replica", "The state of the replica that answers."),
];

const ABOUT: &str = "Durable tasks on PostgreSQL. Ids are strings, since they pass 2^53; times are RFC 3339 in UTC; \
    durations are given in milliseconds (`…_ms`) or as people write them (`250ms`, `5m`). An unknown field or parameter \
    is refused, a null counts as absent. Lists come in pages: `next` is where the next page begins, and null at the \
    end. Every failure is `application/problem+json` with a stable `code`; clients ignore members of answers that they \
    don't know. Every answer has an `x-request-id`: the one of the request, if it had one.";

static TEXT: LazyLock<Bytes> = LazyLock::new(|| {
    let text = serde_json::to_vec(&document());
    text.map(Bytes::from).unwrap_or_default()
});

/// `GET /openapi.json`
pub(super) async fn serve() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], TEXT.clone()).into_response()
}

/// Every operation that there is.
fn operations() -> Vec<Operation> {
    let mut all = tasks::operations();
    all.extend(workflows::operations());
    all.extend(operators::operations());
    all.extend(dead_letters::operations());
    all
}

/// The document.
fn document() -> OpenApi {
    let mut info = Info::new("fencepost", env!("CARGO_PKG_VERSION"));
    info.description = Some(ABOUT.to_owned());
    let mut license = License::new("MIT OR Apache-2.0");
    license.identifier = Some("MIT OR Apache-2.0".to_owned());
    info.license = Some(license);

    let mut schemas: Vec<(String, RefOr<Schema>)> = Vec::new();
    Problem::schemas(&mut schemas);
    schemas.push((Problem::name().into_owned(), Problem::described()));
    let mut paths = Paths::new();
    for operation in operations() {
        operation.add_to(&mut paths, &mut schemas);
    }
    let mut components = Components::new();
    components.schemas.extend(schemas);

    let mut document = OpenApi::new(info, paths);
    document.components = Some(components);
    document.tags = Some(
        TAGS.iter()
            .map(|(name, about)| {
                let mut tag = Tag::new(*name);
                tag.description = Some((*about).to_owned());
                tag
            })
            .collect(),
    );
    document
}
