//! Orders for this replica that come as rows: what to cancel, what is paused, which workers get nothing new.
//!
//! Each beat has them read, and a notification hurries that. It is done in a loop of its own, so that a storm of orders
//! does not touch the heartbeat, and nowhere else, so that no older look comes after a newer one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::GenericClient;

use crate::dispatch::settler;
use crate::dispatch::{DATABASE_DEADLINE, Hub, reports};
use crate::domain::id::{DispatcherId, Token};
use crate::domain::pause::Pause;
use crate::domain::scope::Order;
use crate::store::{Error, fleet, pauses, upkeep};

/// Shortest time between two looks that notifications ask for: one look serves all that came meanwhile.
const REST: Duration = Duration::from_millis(50);

/// What the rows say.
#[derive(Debug)]
struct Orders {
    workers: HashMap<String, Order>,
    cancelled: Vec<Token>,
    pauses: Vec<Pause>,
}

/// Reads them.
async fn read(client: &impl GenericClient, dispatcher: DispatcherId) -> Result<Orders, Error> {
    Ok(Orders {
        workers: fleet::read_orders(client).await?.into_iter().collect(),
        cancelled: upkeep::find_cancelled(client, dispatcher).await?,
        pauses: pauses::read(client).await?,
    })
}

/// Takes up what others want of this replica.
fn take_up(hub: &Hub, orders: Orders) {
    for session in hub.fleet.take_orders(&orders.workers) {
        session.end();
    }
    reports::cancel(hub, &orders.cancelled, "The task is being cancelled.");
    let news = *hub.pauses.read() != orders.pauses;
    if news {
        *hub.pauses.write() = orders.pauses;
        // What was paused may start now.
        hub.wakes.everything();
    }
}

/// Takes orders up as they are announced, until the term ends.
pub async fn run(hub: Arc<Hub>) {
    let ended = hub.ended.clone();
    ended.run_until_cancelled(serve(&hub)).await;
}

async fn serve(hub: &Hub) {
    loop {
        hub.orders.notified().await;
        let dispatcher = hub.dispatcher;
        let orders = hub.pool.run(DATABASE_DEADLINE, move |client| {
            Box::pin(async move { read(client, dispatcher).await })
        });
        match orders.await {
            Ok(orders) => take_up(hub, orders),
            Err(error) => settler::said(&error, "the next beat reads the orders"),
        }
        tokio::time::sleep(REST.mul_f64(0.5 + fastrand::f64())).await;
    }
}
