//! Rates as operators set them, and buckets as they are stored.

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;
use tokio_postgres::Row;

use super::queues::Declaration;
use super::{Error, storable};
use crate::domain::rate::{Bucket, Rate};

const SET_NAMESPACE_RATE: &str = include_str!("../../sql/set_namespace_rate.sql");
const SET_QUEUE_RATE: &str = include_str!("../../sql/set_queue_rate.sql");
const SET_KEY_RATE: &str = include_str!("../../sql/set_key_rate.sql");

/// How many tasks may start in a time. The database judges the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateSettings {
    /// `N/s`, `N/min` or `N/h`, or `none`, which lifts it; none keeps what is there.
    pub rate: Option<String>,
    /// Tasks that may start at once; none keeps what is there, at first as many as come in a second.
    pub burst: Option<i32>,
}

impl RateSettings {
    /// Whether nothing is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rate.is_none() && self.burst.is_none()
    }

    fn rate(&self) -> Option<String> {
        self.rate.as_deref().map(storable)
    }
}

/// Sets the rate of a namespace, which is made if it is new.
pub(super) async fn set_of_namespace(
    client: &impl GenericClient,
    name: &str,
    settings: &RateSettings,
) -> Result<(), Error> {
    let statement = client.prepare_cached(SET_NAMESPACE_RATE).await?;
    let rate = settings.rate();
    client
        .query(&statement, &[&storable(name), &rate, &settings.burst])
        .await?;
    Ok(())
}

/// Sets the rates of a route that is declared, as far as they are given.
pub(super) async fn set_of_queue(
    client: &impl GenericClient,
    route: &Declaration,
) -> Result<(), Error> {
    for (text, settings) in [
        (SET_QUEUE_RATE, &route.rate),
        (SET_KEY_RATE, &route.key_rate),
    ] {
        if !settings.is_empty() {
            set_of_route(client, text, route, settings).await?;
        }
    }
    Ok(())
}

async fn set_of_route(
    client: &impl GenericClient,
    text: &str,
    route: &Declaration,
    settings: &RateSettings,
) -> Result<(), Error> {
    let statement = client.prepare_cached(text).await?;
    let namespace = route.namespace.as_deref().unwrap_or("default");
    let (node, rate) = (route.node.as_deref().map(storable), settings.rate());
    client
        .query(
            &statement,
            &[
                &storable(&route.task_queue),
                &storable(&route.task_type),
                &storable(namespace),
                &node,
                &rate,
                &settings.burst,
            ],
        )
        .await?;
    Ok(())
}

/// The rate of a row for each concurrency key, if it has one.
pub(super) fn of_keys(row: &Row) -> Result<Option<Rate>, Error> {
    let tasks: Option<i32> = row.try_get("key_rate_tasks")?;
    let period_ms: Option<i32> = row.try_get("key_rate_period_ms")?;
    let burst: Option<i32> = row.try_get("key_rate_burst")?;
    let rate = tasks.zip(period_ms);
    Ok(rate.map(|(tasks, period_ms)| Rate::new(tasks, period_ms, burst)))
}

/// The bucket of a row, if it has a rate. Its columns begin with this.
pub(super) fn bucket(row: &Row, prefix: &str) -> Option<Bucket> {
    let number = |column: &str| row.get::<_, Option<i32>>(format!("{prefix}{column}").as_str());
    let rate = |of: &str| {
        let (tasks, period_ms) = (format!("{of}_tasks"), format!("{of}_period_ms"));
        let burst = number(&format!("{of}_burst"));
        Some(Rate::new(number(&tasks)?, number(&period_ms)?, burst))
    };
    let full_at: Option<DateTime<Utc>> = row.get(format!("{prefix}full_at").as_str());
    Some(Bucket::new(rate("rate")?, rate("bucket").zip(full_at)))
}
