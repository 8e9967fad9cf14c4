//! The listening connection's own statements.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Client;

use super::Error;

const LISTEN: &str = include_str!("../../sql/listen.sql");
const CHECK: &str = include_str!("../../sql/check_connection.sql");

/// Starts to listen.
pub async fn start(client: &Client, limit: Duration) -> Result<(), Error> {
    answer(client, LISTEN, limit).await
}

/// Asks the server something, to see that it is there.
pub async fn check(client: &Client, limit: Duration) -> Result<(), Error> {
    answer(client, CHECK, limit).await
}

async fn answer(client: &Client, statement: &str, limit: Duration) -> Result<(), Error> {
    match timeout(limit, client.batch_execute(statement)).await {
        Ok(answered) => Ok(answered?),
        Err(_) => Err(Error::unavailable(
            "the listening connection does not answer",
        )),
    }
}
