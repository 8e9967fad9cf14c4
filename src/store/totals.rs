//! How much goes in and comes out, for those who watch.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Client, Error};

const READ: &str = include_str!("../../sql/read_totals.sql");

/// What has been written since the server's statistics began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// Tasks.
    pub enqueued: i64,
    /// Ends of tasks, however they ended.
    pub ended: i64,
    /// Failed tries.
    pub failed: i64,
}

/// What goes on in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Tasks enqueued.
    pub enqueued: f64,
    /// Tasks ended, however they ended.
    pub ended: f64,
    /// Failed tries.
    pub failed: f64,
}

impl Totals {
    /// The rates since an earlier look; none where no time has passed.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Rates> {
        let seconds = (self.at - earlier.at).to_std().unwrap_or(Duration::ZERO);
        let seconds = seconds.as_secs_f64();
        // A day that was dropped meanwhile makes it less than it was.
        let rate = |now: i64, before: i64| (now - before).max(0) as f64 / seconds;
        (seconds > 0.0).then(|| Rates {
            enqueued: rate(self.enqueued, earlier.enqueued),
            ended: rate(self.ended, earlier.ended),
            failed: rate(self.failed, earlier.failed),
        })
    }
}

/// Reads them.
pub async fn read(client: &Client) -> Result<Totals, Error> {
    let statement = client.prepare_cached(READ).await?;
    let row = client.query_one(&statement, &[]).await?;
    Ok(Totals {
        at: row.try_get("at")?,
        enqueued: row.try_get("enqueued")?,
        ended: row.try_get("ended")?,
        failed: row.try_get("failed")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(ms: i64, count: i64) -> Totals {
        Totals {
            at: DateTime::from_timestamp_millis(ms).unwrap(),
            enqueued: count,
            ended: count / 2,
            failed: 0,
        }
    }

    #[test]
    fn rates_are_what_was_written_over_the_time_between() {
        let rates = totals(2_500, 150).since(&totals(500, 50)).unwrap();
        let expected = Rates {
            enqueued: 50.0,
            ended: 25.0,
            failed: 0.0,
        };
        assert_eq!(rates, expected);
        assert_eq!(totals(500, 50).since(&totals(500, 40)), None);
        assert_eq!(totals(400, 50).since(&totals(500, 40)), None);
        let fewer = totals(1_500, 10).since(&totals(500, 50)).unwrap();
        assert!(fewer.enqueued.abs() < f64::EPSILON);
    }
}
