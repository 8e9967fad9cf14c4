//! One POST to an owner, signed. docs/dead-letters.md describes it for those who receive it.

use std::fmt::Write as _;
use std::time::Duration;

use axum::http::{Request, Uri, header};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::{BodyExt as _, Full, Limited};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use sha2::Sha256;

use crate::outbound;
use crate::store::letter_events::Event;

/// From the connection to the last byte of the answer.
const TRY: Duration = Duration::from_secs(10);
/// An answer is a few bytes; more is not read.
const ANSWER_BYTES: usize = 64 * 1024;

/// What an owner may say beside "taken".
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    judged: bool,
}

/// The client that all webhooks share. It follows no redirects: a letter goes where the namespace says, or nowhere.
pub(super) struct Webhooks {
    client: outbound::Client,
}

impl Webhooks {
    pub(super) fn new() -> Self {
        Self {
            client: outbound::client(),
        }
    }

    /// Posts an event. None: there is nothing to post, or nowhere. True: the owner judges the letter. The error is a
    /// sentence without anything that the other side has sent but its status.
    pub(super) async fn post(&self, event: &Event) -> Option<Result<bool, String>> {
        let (webhook, secret, body) = (
            event.webhook.as_deref()?,
            event.secret.as_ref()?,
            event.body.as_deref()?,
        );
        let posted = tokio::time::timeout(TRY, self.send(event, webhook, secret, body)).await;
        Some(posted.unwrap_or_else(|_| Err(format!("no answer within {} s", TRY.as_secs()))))
    }

    async fn send(
        &self,
        event: &Event,
        webhook: &str,
        secret: &SecretString,
        body: &str,
    ) -> Result<bool, String> {
        let uri: Uri = webhook.parse().map_err(|_| "not a URL".to_owned())?;
        let signature = signature(secret, event.sent_at, body).ok_or("not a secret")?;
        let request = Request::post(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::USER_AGENT,
                concat!("fencepost/", env!("CARGO_PKG_VERSION")),
            )
            .header("fencepost-event-id", event.id.to_string())
            .header("fencepost-signature", signature)
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .map_err(|error| error.to_string())?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| outbound::sentence(&error))?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("answered with status {}", status.as_u16()));
        }
        // It has taken the letter, whatever else it says.
        let answer = Limited::new(response.into_body(), ANSWER_BYTES);
        let Ok(answer) = answer.collect().await else {
            return Ok(false);
        };
        let answer = serde_json::from_slice::<Answer>(&answer.to_bytes());
        Ok(answer.is_ok_and(|answer| answer.judged))
    }
}

/// `t=SECONDS,v1=HEX`: HMAC-SHA256 over the seconds, a full stop, and the body. The time is part of it, so that an old
/// request can be told from a repeated one.
fn signature(secret: &SecretString, sent_at: i64, body: &str) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose_secret().as_bytes()).ok()?;
    mac.update(sent_at.to_string().as_bytes());
    mac.update(b".");
    mac.update(body.as_bytes());
    let mut text = format!("t={sent_at},v1=");
    for byte in mac.finalize().into_bytes() {
        write!(text, "{byte:02x}").ok()?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_other_implementations() {
        let secret = SecretString::from("0123456789abcdef");
        assert_eq!(
            signature(&secret, 1_700_000_000, "{\"a\":1}").unwrap(),
            "t=1700000000,v1=9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23"
        );
    }
}
