//! What every answer of this door has in common: a request id, and gzip where the client takes it.

use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate as _, SizeAbove};
use tracing::Instrument as _;

/// Where a request's id stands, in the request and in its answer.
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is taken over: longer than any that tracing systems make.
const LONGEST_ID: usize = 128;
/// Smaller answers fit into one packet as they are.
const COMPRESSED: u64 = 1_400;

/// Puts the manners around every route.
pub(super) fn around(router: Router) -> Router {
    // Events are to go out one by one, as they come.
    let worth_it = SizeAbove::new(COMPRESSED).and(NotForContentType::SSE);
    router
        .layer(CompressionLayer::new().compress_when(worth_it))
        .layer(middleware::from_fn(async |request, next: Next| {
            identify(request, |request| next.run(request)).await
        }))
}

/// Takes the request's id or makes one, names it in every line that is logged while `answer` is at it, and gives it back.
pub async fn identify<F>(request: Request, answer: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let id = request.headers().get(&REQUEST_ID);
    let id = id.filter(|id| is_id(id)).cloned().or_else(made);
    let text = id.as_ref().and_then(|id| id.to_str().ok());
    let span = tracing::info_span!(
        "request",
        request_id = text.unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
    );
    let begun = Instant::now();
    let answered = async {
        let response = answer(request).await;
        let status = response.status();
        let ms = begun.elapsed().as_millis();
        // The others say that something is away, which whoever looks after it says once.
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::warn!(status = status.as_u16(), ms, "answered with an error");
        } else {
            tracing::debug!(status = status.as_u16(), ms, "answered");
        }
        response
    };
    let mut response = answered.instrument(span).await;
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    response
}

/// Whether it can stand in a log line as it is.
fn is_id(id: &HeaderValue) -> bool {
    (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// Not to be guessed is no need; not to be met twice is.
fn made() -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{:032x}", fastrand::u128(..))).ok()
}
