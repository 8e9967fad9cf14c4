//! What the demo looks at while and after its tasks run. Costs grow with the range of ids that is asked for.

use std::ops::RangeInclusive;

use super::{Client, Error};

const FIND_STATES: &str = include_str!("../../sql/find_states.sql");
const READ_TIMES: &str = include_str!("../../sql/read_times.sql");

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stand {
    /// Not claimed: due now or later.
    Waiting,
    /// Claimed by a replica.
    Running,
    /// Ended well.
    Done,
    /// Ended as a dead letter.
    Failed,
    /// Ended on request.
    Cancelled,
}

/// One task of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Its id.
    pub id: i64,
    /// Where it stands.
    pub stand: Stand,
    /// Failed tries so far.
    pub attempt: i32,
}

/// When a task was enqueued and when it ended, in microseconds since 1970 by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Its id.
    pub id: i64,
    /// When the enqueue wrote it.
    pub enqueued_us: i64,
    /// When it ended; none while it has not.
    pub ended_us: Option<i64>,
}

/// All tasks with ids in the range, from one snapshot, whoever they belong to.
///
/// # Errors
/// [`Error`].
pub async fn find_states(client: &Client, ids: RangeInclusive<i64>) -> Result<Vec<State>, Error> {
    let statement = client.prepare_cached(FIND_STATES).await?;
    let rows = client.query(&statement, &[ids.start(), ids.end()]).await?;
    rows.iter()
        .map(|row| {
            let stand = match row.try_get::<_, i16>("state")? {
                0 => Stand::Waiting,
                1 => Stand::Running,
                2 => Stand::Done,
                3 => Stand::Failed,
                _ => Stand::Cancelled,
            };
            Ok(State {
                id: row.try_get("id")?,
                stand,
                attempt: row.try_get("attempt")?,
            })
        })
        .collect()
}

/// The times of all tasks with ids in the range.
///
/// # Errors
/// [`Error`].
pub async fn read_times(client: &Client, ids: RangeInclusive<i64>) -> Result<Vec<Times>, Error> {
    let statement = client.prepare_cached(READ_TIMES).await?;
    let rows = client.query(&statement, &[ids.start(), ids.end()]).await?;
    rows.iter()
        .map(|row| {
            Ok(Times {
                id: row.try_get("id")?,
                enqueued_us: row.try_get("enqueued_us")?,
                ended_us: row.try_get("ended_us")?,
            })
        })
        .collect()
}
