//! The WebSocket door: the frames of the protocol as JSON, one a text message.
//!
//! Nothing is known of a worker before its first message, so a denial is a message too, and a close code after it.
//! What breaks the protocol later ends the stream with a close code and a reason that names the field.

mod close;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::stream::SplitSink;
use futures_util::{SinkExt, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::admission::{Admitted, Denied, Status};
use super::entry::{self, Entry};
use super::session::{self, Opened};
use crate::dispatch::Hub;
use crate::domain::scope::Transport;
use crate::proto::json;
use crate::proto::worker::WorkerFrame;
use close::{Close, Code};

/// Where workers find it.
const PATH: &str = "/v1/workers";
/// Bytes that are read ahead for one connection; there are thousands of idle ones.
const READ_BUFFER: usize = 16 * 1024;
/// A worker has this long to take the last frames and answer the close: a few round trips.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

type Sink = SplitSink<WebSocket, Message>;

/// Puts the door that leads to this entry before a router: who asks for another protocol at its path is a worker,
/// anybody else goes on.
pub fn before(router: Router, entry: Entry) -> Router {
    router.layer(middleware::from_fn_with_state(entry, pass))
}

async fn pass(State(entry): State<Entry>, request: Request, next: Next) -> Response {
    if request.uri().path() != PATH || !request.headers().contains_key(header::UPGRADE) {
        return next.run(request).await;
    }
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &entry).await;
    connect(entry, upgrade)
}

fn connect(entry: Entry, upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>) -> Response {
    let Ok(upgrade) = upgrade else {
        let answer = "Workers connect here by WebSocket.\n";
        return (
            StatusCode::UPGRADE_REQUIRED,
            [(header::UPGRADE, "websocket")],
            answer,
        )
            .into_response();
    };
    let limit = entry.settings.max_frame_bytes;
    upgrade
        .read_buffer_size(READ_BUFFER)
        .max_message_size(limit)
        .max_frame_size(limit)
        .on_upgrade(move |socket| {
            let sessions = entry.sessions.clone();
            sessions.track_future(serve(entry, socket))
        })
}

async fn serve(entry: Entry, socket: WebSocket) {
    let (mut sink, messages) = socket.split();
    let mut frames = pin!(frames(messages));
    let register = entry::registration(async { frames.next().await.transpose() }).await;
    let admitted = match register {
        Ok(Ok(register)) => entry
            .admit(register, Transport::WebSocket)
            .await
            .map_err(Close::from),
        Ok(Err(fault)) => Err(fault),
        Err(denied) => Err(denied.into()),
    };
    let closed = match admitted {
        Ok((hub, admitted)) => talk(&entry, hub, admitted, &mut sink, &mut frames).await,
        Err(close) => Err(close),
    };
    let close = match closed {
        Ok(close) => close,
        Err(close) => {
            // What is left to do is to say so, to whoever still listens.
            sink.send(Message::Text(close.denial().into())).await.ok();
            close
        }
    };
    let too_large = close.code == Code::TooLarge;
    let closing = async {
        sink.send(close.into_message()).await?;
        // The rest of a message that is too large is never read, so there is no answer to wait for: the time lets the
        // worker see why, before the end of the connection cuts it short.
        if too_large {
            std::future::pending::<()>().await;
        }
        while frames.next().await.is_some_and(|frame| frame.is_ok()) {}
        Ok::<_, axum::Error>(())
    };
    tokio::time::timeout(CLOSE_GRACE, closing).await.ok();
}

/// The life of a session. Answers how it is to be closed; an error is the close of one that did not begin.
async fn talk<S>(
    entry: &Entry,
    hub: Arc<Hub>,
    admitted: Admitted,
    sink: &mut Sink,
    frames: &mut S,
) -> Result<Close, Close>
where
    S: Stream<Item = Result<WorkerFrame, Close>> + Unpin,
{
    let fault = Mutex::new(None);
    let watched = frames.inspect(|frame| {
        if let Err(close) = frame {
            *fault.lock() = Some(close.clone());
        }
    });
    let (opened, open) = oneshot::channel();
    let settings = entry.settings;
    let living = session::live(Arc::clone(&hub), settings, admitted, watched, opened);
    let sending = async {
        match open.await {
            Ok(Ok(opened)) => send(opened, sink).await,
            Ok(Err(denied)) => return Err(Close::from(denied)),
            // The session ended at once, and how is known below.
            Err(_) => {}
        }
        Ok(())
    };
    let ((), sent) = tokio::join!(living, sending);
    sent?;
    let fault = fault.lock().take();
    Ok(fault.unwrap_or_else(|| Close::ended(hub.is_draining())))
}

/// Sends the session's frames until it ends.
async fn send(mut opened: Opened, sink: &mut Sink) {
    let end = opened.end.clone();
    let sending = async {
        while let Some(frame) = opened.next().await {
            let text = json::write_dispatcher_frame(frame);
            if sink.send(Message::Text(text.into())).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = sending => {}
        // A worker that does not read does not hold up the end.
        () = async {
            end.cancelled().await;
            tokio::time::sleep(CLOSE_GRACE).await;
        } => {}
    }
    end.cancel();
}

/// The frames that come in.
fn frames(
    messages: impl Stream<Item = Result<Message, axum::Error>>,
) -> impl Stream<Item = Result<WorkerFrame, Close>> {
    messages.filter_map(|message| {
        std::future::ready(match message {
            Ok(Message::Text(text)) => Some(json::read_worker_frame(&text).map_err(Close::from)),
            Ok(Message::Binary(_)) => Some(Err(Close::binary())),
            // The library answers pings and closes; what proves a worker alive are frames.
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_)) => None,
            Err(error) => Some(Err(error.into())),
        })
    })
}
