//! Ageing: how waiting counts against priority.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// How waiting counts against priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ageing(Duration);

impl Ageing {
    /// After `step` a row stands where one of the next priority stands; none for never.
    #[must_use]
    pub fn new(step: Option<Duration>) -> Self {
        // Longer than any row waits, and short enough for the database to add to a time.
        const NEVER: Duration = Duration::from_hours(24 * 365 * 1000);
        Self(step.unwrap_or(NEVER))
    }

    /// Waiting for so long counts as much as one priority.
    #[must_use]
    pub fn step(self) -> Duration {
        self.0
    }

    /// The later the further back in the line: when a row of this priority that was due then would have become due as
    /// one of priority 0.
    #[must_use]
    pub fn place(self, priority: i16, due: DateTime<Utc>) -> DateTime<Utc> {
        let back = self.0.saturating_mul(u32::try_from(priority).unwrap_or(0));
        let back = TimeDelta::from_std(back).unwrap_or(TimeDelta::MAX);
        due.checked_add_signed(back)
            .unwrap_or(DateTime::<Utc>::MAX_UTC)
    }
}

impl Default for Ageing {
    fn default() -> Self {
        Self::new(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    #[test]
    fn a_row_moves_up_a_lane_with_every_step() {
        let ageing = Ageing::new(Some(Duration::from_secs(30)));
        assert!(ageing.place(0, due(89)) < ageing.place(3, due(0)));
        assert!(ageing.place(0, due(91)) > ageing.place(3, due(0)));
        assert_eq!(ageing.place(1, due(60)), ageing.place(3, due(0)));
    }

    #[test]
    fn without_ageing_priority_alone_counts() {
        let ageing = Ageing::new(None);
        assert!(ageing.place(0, due(86_400 * 365 * 100)) < ageing.place(1, due(0)));
        assert!(ageing.place(1, due(0)) < ageing.place(1, due(1)));
    }
}
