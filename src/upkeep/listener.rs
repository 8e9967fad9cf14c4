//! Turns notifications into wakes. They are advice: when the connection is silent or gone, polling goes on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio_postgres::AsyncMessage;

use crate::dispatch::Hub;
use crate::store::{self, listen};

/// The connection has to answer a question this often, within the same time: one whose other end is gone without a
/// word is found within twice that.
const CHECK: Duration = Duration::from_secs(5);
/// Waits between two tries to connect.
const RETRY_WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Notifications that may wait; more are dropped, since one look serves them all.
const NOTIFICATIONS: usize = 1024;

/// Listens until the term ends.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    ended.run_until_cancelled(listen_on(&hub)).await;
    hub.telemetry.heard.listening(false);
}

async fn listen_on(hub: &Hub) {
    let mut wait = RETRY_WAITS.0;
    loop {
        let ended = listen_once(hub, &mut wait).await;
        hub.telemetry.heard.listening(false);
        match ended {
            Ok(()) => tracing::debug!("the listening connection ended; it is made anew"),
            Err(error) => {
                tracing::debug!(%error, "the listening connection failed; it is made anew");
            }
        }
        tokio::time::sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
        wait = (wait * 2).min(RETRY_WAITS.1);
    }
}

/// One connection, until it fails.
async fn listen_once(hub: &Hub, wait: &mut Duration) -> Result<(), store::Error> {
    let (client, mut connection) = hub.pool.connect_listener().await?;
    let (heard, mut notifications) = mpsc::channel(NOTIFICATIONS);
    let polled = async move {
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(message) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message? {
                // Full: many looks are due already.
                let _full = heard.try_send(notification.payload().to_owned()).is_err();
            }
        }
        Ok::<(), store::Error>(())
    };
    let used = async {
        listen::start(&client, CHECK).await?;
        *wait = RETRY_WAITS.0;
        hub.telemetry.heard.listening(true);
        // What was committed while nobody listened.
        hub.wakes.everything();
        hub.orders.notify_one();
        loop {
            match tokio::time::timeout(CHECK, notifications.recv()).await {
                Ok(Some(payload)) => take_up(hub, &payload),
                Ok(None) => return Ok(()),
                Err(_) => listen::check(&client, CHECK).await?,
            }
        }
    };
    tokio::select! {
        ended = polled => ended,
        failed = used => failed,
    }
}

/// A payload is a route's number, followed by `back` where rows were put back and by `freed` where tasks under a quota
/// have ended; or `settings`, where these are others; `redrive`, where one may go on; `keys`, where concurrency
/// keys are to be looked at; `orders`, where somebody has ordered
/// something; `awaiting`, where somebody begins to wait for the end of a task; `ended`, where tasks have ended. Anything
/// else is from a newer release.
fn take_up(hub: &Hub, payload: &str) {
    let heard = &hub.telemetry.heard;
    match payload {
        "redrive" | "keys" | "settings" | "orders" | "awaiting" | "ended" => heard.heard(payload),
        _ => {}
    }
    match payload {
        "redrive" => return hub.wakes.redrive(),
        "keys" => return hub.wakes.keys(),
        "settings" => return hub.wakes.settings(),
        "orders" => return hub.orders.notify_one(),
        "awaiting" => return hub.awaited_elsewhere.told(),
        "ended" => return hub.wakes.ended_elsewhere(),
        _ => {}
    }
    let (route, what) = payload.split_once(' ').unwrap_or((payload, ""));
    match route.parse() {
        Ok(route) => {
            heard.heard(if what.is_empty() { "enqueued" } else { what });
            match what {
                "" => hub.wakes.route(route, false),
                "back" => hub.wakes.route(route, true),
                "freed" => hub.wakes.freed_elsewhere(route),
                _ => {}
            }
        }
        Err(_) => {
            heard.heard("unknown");
            tracing::debug!("a notification of unknown form");
        }
    }
}
