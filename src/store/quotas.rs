//! Quotas and rates: taking them for one transaction, counting how far they are used, and taking tokens.

use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;

use super::settings::LOCK_TIMEOUT;
use super::{Error, rates};
use crate::domain::id::{DispatcherId, RouteId};
use crate::domain::quota::{Limited, Usage};
use crate::domain::rate::Rate;

const LOCK: &str = include_str!("../../sql/lock_quotas.sql");
const AWAIT: &str = include_str!("../../sql/await_quota.sql");
const COUNT: &str = include_str!("../../sql/count_claimed.sql");
const TAKE_TOKENS: &str = include_str!("../../sql/take_tokens.sql");
const WAKE_HELD_BACK: &str = include_str!("../../sql/wake_held_back.sql");

/// A quota or rate that is asked for, and where a count of what is claimed may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Of what.
    pub of: Limited,
    /// No claimed row was older than the first, when the clock stood at the second.
    pub from: Option<(DateTime<Utc>, DateTime<Utc>)>,
}

impl Ask {
    /// Counted from the very first on.
    #[must_use]
    pub fn anew(of: Limited) -> Self {
        Self { of, from: None }
    }
}

/// As the statements have it.
fn key(of: Limited) -> (i32, i32) {
    match of {
        Limited::Namespace(number) => (1, number),
        Limited::Route(number) => (2, number),
    }
}

fn limited(kind: i32, number: i32) -> Limited {
    match kind {
        1 => Limited::Namespace(number),
        _ => Limited::Route(number),
    }
}

fn keys(asks: &[Ask]) -> (Vec<i32>, Vec<i32>) {
    asks.iter().map(|ask| key(ask.of)).unzip()
}

/// Takes those quotas and rates that nobody else has, until the end of the transaction; answers them.
pub async fn lock(client: &impl GenericClient, asks: &[Ask]) -> Result<Vec<Limited>, Error> {
    let (kinds, numbers) = keys(asks);
    let statement = client.prepare_cached(LOCK).await?;
    let rows = client.query(&statement, &[&kinds, &numbers]).await?;
    let held = rows.iter().filter(|row| row.get("held"));
    Ok(held
        .map(|row| limited(row.get("kind"), row.get("number")))
        .collect())
}

/// Waits for one quota, as the first lock of its transaction.
///
/// # Errors
/// [`Error::Conflict`] when others hold it for the whole of `longest`, which counts in milliseconds.
pub async fn wait(
    client: &impl GenericClient,
    of: Limited,
    longest: Duration,
) -> Result<(), Error> {
    let (kind, number) = key(of);
    let statement = client.prepare_cached(AWAIT).await?;
    let span = |wait: Duration| format!("{}ms", wait.as_millis());
    let (longest, after) = (span(longest), span(LOCK_TIMEOUT));
    client
        .query_one(&statement, &[&kind, &number, &longest, &after])
        .await?;
    Ok(())
}

/// How far quotas and rates are used: exactly, for the rest of the transaction, where they are held.
pub async fn count(client: &impl GenericClient, asks: &[Ask]) -> Result<Vec<Usage>, Error> {
    let (kinds, numbers) = keys(asks);
    let from: Vec<Option<DateTime<Utc>>> = asks.iter().map(|ask| Some(ask.from?.0)).collect();
    let at: Vec<Option<DateTime<Utc>>> = asks.iter().map(|ask| Some(ask.from?.1)).collect();
    let statement = client.prepare_cached(COUNT).await?;
    let rows = client
        .query(&statement, &[&kinds, &numbers, &from, &at])
        .await?;
    let usages = rows.iter().map(|row| Usage {
        of: limited(row.get("kind"), row.get("number")),
        quota: row.get("quota"),
        claimed: row.get("claimed"),
        oldest: row.get("oldest"),
        bucket: rates::bucket(row, ""),
        at: row.get("at"),
    });
    Ok(usages.collect())
}

/// Takes so many tokens from each rate that is held, as it was counted in this transaction.
pub async fn take_tokens(
    client: &impl GenericClient,
    starts: &[(&Usage, i32)],
) -> Result<(), Error> {
    let after = starts.iter().filter_map(|(usage, starts)| {
        let bucket = usage.bucket?.take(*starts, usage.at);
        Some((key(usage.of), bucket.rate, bucket.full_at))
    });
    let mut after: Vec<_> = after.collect();
    if after.is_empty() {
        return Ok(());
    }
    after.sort_unstable_by_key(|(key, ..)| *key);
    let (kinds, numbers): (Vec<i32>, Vec<i32>) = after.iter().map(|(key, ..)| *key).unzip();
    let column = |of: fn(&Rate) -> i32| after.iter().map(|(_, rate, _)| of(rate)).collect();
    let (tasks, periods, bursts): (Vec<i32>, Vec<i32>, Vec<i32>) = (
        column(Rate::tasks),
        column(Rate::period_ms),
        column(Rate::burst),
    );
    let full_at: Vec<Option<DateTime<Utc>>> = after.iter().map(|(.., full_at)| *full_at).collect();
    let statement = client.prepare_cached(TAKE_TOKENS).await?;
    client
        .execute(
            &statement,
            &[&kinds, &numbers, &tasks, &periods, &bursts, &full_at],
        )
        .await?;
    Ok(())
}

/// Tells the replicas that a quota holds back, where there are any, that tasks of these routes have ended.
pub async fn wake_held_back(
    client: &impl GenericClient,
    freed: &[RouteId],
    own: DispatcherId,
) -> Result<(), Error> {
    let statement = client.prepare_cached(WAKE_HELD_BACK).await?;
    client.query(&statement, &[&freed, &own]).await?;
    Ok(())
}
