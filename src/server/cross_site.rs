//! Refuses what web pages of other hosts ask of a replica.
//!
//! A browser lets any page send a form, or open a WebSocket, to any address that it reaches, and says in headers which
//! page it was. Programs that are not browsers send neither header.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};

use crate::api::{Error, http};

/// Whether the page is one of the host that it asks; all current browsers send it to where nobody listens in.
const FETCH_SITE: &str = "sec-fetch-site";

/// Puts the check before every route.
pub(super) fn refused(router: Router) -> Router {
    router.layer(middleware::from_fn(refuse))
}

async fn refuse(request: Request, next: Next) -> Response {
    let headers = request.headers();
    if (!request.method().is_safe() || headers.contains_key(header::UPGRADE))
        && !is_own(request.uri(), headers)
    {
        return http::identify(request, refusal).await;
    }
    next.run(request).await
}

async fn refusal(request: Request) -> Response {
    // A page may ask as often as it likes: the first time is news.
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let path = request.uri().path();
    if IS_SAID.swap(true, Ordering::Relaxed) {
        tracing::debug!(path, "refused another one of a web page of another host");
    } else {
        tracing::warn!(
            path,
            "refused what a web page of another host asked for; said once"
        );
    }
    let message = "pages of other hosts can't change anything here, nor be workers.";
    Error::new("FP-118", message).into_response()
}

/// Whether the request comes from no web page, or from one of the host that it is sent to.
fn is_own(uri: &Uri, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        return site == "same-origin" || site == "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let page = origin.to_str().ok().and_then(|text| text.parse().ok());
    let page = page.as_ref().and_then(Uri::authority);
    let host = headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    // HTTP/2 names the host in the address.
    let host = host.or(uri.authority().map(Authority::as_str));
    page.zip(host)
        .is_some_and(|(page, host)| page.as_str().eq_ignore_ascii_case(host))
}
