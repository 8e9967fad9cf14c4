//! The dashboard: files that are part of the program, made for the browser of an operator.
//!
//! Pages name their files below a version that is made of their content, so that they are cached for good and never
//! meet files of another build. What they show comes from the JSON API of the replica that served them.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::unknown_path;
use crate::api::{Error, State};

/// What the browser may do with a page: run and show what comes from here, ask here, and set no markup from text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const PAGE: &str = include_str!("../../dashboard/index.html");

struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal: $kind:expr),* $(,)?) => {
        &[$(File {
            name: $name,
            kind: $kind,
            text: include_str!(concat!("../../dashboard/", $name)),
        }),*]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: &[File] = files![
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "app.js": SCRIPT,
    "api.js": SCRIPT,
    "chart.js": SCRIPT,
    "dom.js": SCRIPT,
    "format.js": SCRIPT,
    "keys.js": SCRIPT,
    "letters.js": SCRIPT,
    "live.js": SCRIPT,
    "pauses.js": SCRIPT,
    "queues.js": SCRIPT,
    "replicas.js": SCRIPT,
    "table.js": SCRIPT,
    "task.js": SCRIPT,
    "tasks.js": SCRIPT,
    "tenants.js": SCRIPT,
    "unserved.js": SCRIPT,
    "workers.js": SCRIPT,
    "workflows.js": SCRIPT,
];

/// The page and its files.
pub(super) fn routes() -> Router<State> {
    Router::new()
        .route("/", get(page))
        .route("/dashboard/{version}/{file}", get(file))
}

/// The release, and a number that every change of a file changes (FNV-1a).
fn version() -> String {
    let texts = FILES.iter().map(|file| file.text).chain([PAGE]);
    let bytes = texts.flat_map(str::bytes);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}-{hash:016x}", env!("CARGO_PKG_VERSION"))
}

async fn page() -> Response {
    let text = PAGE.replace("{version}", &version());
    answer(text, "text/html; charset=utf-8", "no-cache")
}

async fn file(
    Path((asked, name)): Path<(String, String)>,
    request: axum::extract::Request,
) -> Result<Response, Error> {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return Err(unknown_path(request).await);
    };
    // While replicas are renewed a page of one build may ask a replica of another one.
    let cached = if asked == version() {
        "public, max-age=31536000, immutable"
    } else {
        "no-store"
    };
    Ok(answer(file.text, file.kind, cached))
}

fn answer(text: impl IntoResponse, kind: &'static str, cached: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 6] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static(cached)),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ];
    (headers, text).into_response()
}
