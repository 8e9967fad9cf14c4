//! Rates: how many tasks of a namespace or route may start in a time, over all replicas.
//!
//! A bucket is one timestamp, the time at which it will be full again (generic cell rate algorithm). So no window has an
//! edge: in any span of time no more tasks start than the rate gives in it, and one burst.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};

/// A look at a bucket is worth as many tokens as come in this time, so that a rate of many tasks a second does not cost
/// many looks a second.
const LOOK: TimeDelta = TimeDelta::milliseconds(100);
/// A bucket that is emptier than empty by this time was filled before the clock stepped back.
const STEPPED: TimeDelta = TimeDelta::seconds(5);

/// So many tasks in a period, and so many at once where none have started for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    tasks: i32,
    period_ms: i32,
    burst: i32,
}

impl Rate {
    /// `tasks` in so many milliseconds. Without a burst it is what comes in a second, at least one.
    #[must_use]
    pub fn new(tasks: i32, period_ms: i32, burst: Option<i32>) -> Self {
        let (tasks, period_ms) = (tasks.max(1), period_ms.max(1));
        let a_second = (i64::from(tasks) * 1000).div_euclid(i64::from(period_ms));
        let burst = burst.unwrap_or_else(|| i32::try_from(a_second).unwrap_or(i32::MAX));
        Self {
            tasks,
            period_ms,
            burst: burst.max(1),
        }
    }

    /// Tasks that may start in a period.
    #[must_use]
    pub fn tasks(&self) -> i32 {
        self.tasks
    }

    /// The period.
    #[must_use]
    pub fn period_ms(&self) -> i32 {
        self.period_ms
    }

    /// Tasks that may start at once.
    #[must_use]
    pub fn burst(&self) -> i32 {
        self.burst
    }

    fn period_us(&self) -> i128 {
        i128::from(self.period_ms) * 1000
    }

    /// The time in which so many tokens come, rounded up to a microsecond: the database keeps no shorter time.
    fn span(&self, tokens: i32) -> TimeDelta {
        let tasks = i128::from(self.tasks);
        let us = (i128::from(tokens) * self.period_us() + tasks - 1).div_euclid(tasks);
        TimeDelta::microseconds(i64::try_from(us).unwrap_or(i64::MAX))
    }

    /// The tokens that come in this time, one burst at most.
    fn within(&self, span: TimeDelta) -> i32 {
        let us = i128::from(span.num_microseconds().unwrap_or(i64::MAX));
        let tokens = (us * i128::from(self.tasks)).div_euclid(self.period_us());
        i32::try_from(tokens.clamp(0, i128::from(self.burst))).unwrap_or(self.burst)
    }
}

/// As people give it.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks;
        match self.period_ms {
            1_000 => write!(f, "{tasks}/s"),
            60_000 => write!(f, "{tasks}/min"),
            3_600_000 => write!(f, "{tasks}/h"),
            ms => write!(f, "{tasks}/{ms}ms"),
        }
    }
}

/// The tokens of a rate. Each start takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// What comes in.
    pub rate: Rate,
    /// When it will be full again; none if nothing has been taken under this rate.
    pub full_at: Option<DateTime<Utc>>,
}

impl Bucket {
    /// The bucket of a rate, given what was stored last. Another rate begins with a full one.
    #[must_use]
    pub fn new(rate: Rate, stored: Option<(Rate, DateTime<Utc>)>) -> Self {
        let same = stored.filter(|(stored, _)| *stored == rate);
        Self {
            rate,
            full_at: same.map(|(_, full_at)| full_at),
        }
    }

    /// When it will be full, as seen at that time.
    fn full(&self, at: DateTime<Utc>) -> DateTime<Utc> {
        let empty = at + self.rate.span(self.rate.burst);
        match self.full_at {
            Some(full_at) if full_at <= empty + STEPPED => full_at.max(at),
            _ => at,
        }
    }

    /// How many tasks may start now.
    #[must_use]
    pub fn tokens(&self, at: DateTime<Utc>) -> i32 {
        self.rate
            .within(at + self.rate.span(self.rate.burst) - self.full(at))
    }

    /// The bucket after so many starts.
    #[must_use]
    pub fn take(&self, starts: i32, at: DateTime<Utc>) -> Self {
        Self {
            full_at: Some(self.full(at) + self.rate.span(starts)),
            ..*self
        }
    }

    /// When a task may start: now, or when the next token comes.
    #[must_use]
    pub fn free_at(&self, at: DateTime<Utc>) -> DateTime<Utc> {
        self.holds_at(1, at)
    }

    /// When it is worth a look again: with a token, or with as many as come in [`LOOK`], as long as half a bucket holds
    /// them, so that none is lost.
    #[must_use]
    pub fn worth_a_look(&self, at: DateTime<Utc>) -> DateTime<Utc> {
        let half = self.rate.burst / 2;
        self.holds_at(self.rate.within(LOOK).min(half).max(1), at)
    }

    fn holds_at(&self, tokens: i32, at: DateTime<Utc>) -> DateTime<Utc> {
        let empty = self.full(at) - self.rate.span(self.rate.burst);
        (empty + self.rate.span(tokens)).max(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(us: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(1_800_000_000_000_000 + us).unwrap()
    }

    fn fresh(rate: Rate) -> Bucket {
        Bucket {
            rate,
            full_at: None,
        }
    }

    #[test]
    fn a_burst_then_one_at_a_time() {
        let mut bucket = fresh(Rate::new(5, 1000, Some(3)));
        assert_eq!(bucket.tokens(at(0)), 3);
        bucket = bucket.take(3, at(0));
        assert_eq!((bucket.tokens(at(0)), bucket.tokens(at(199_999))), (0, 0));
        assert_eq!(bucket.free_at(at(0)), at(200_000));
        assert_eq!(bucket.tokens(at(200_000)), 1);
        bucket = bucket.take(1, at(200_000));
        assert_eq!(bucket.free_at(at(250_000)), at(400_000));
        assert_eq!(bucket.tokens(at(10_000_000)), 3, "it holds no more");
    }

    #[test]
    fn the_burst_is_a_second_unless_given_and_rates_are_spelled_as_they_are_given() {
        let rates = [(5, 1000), (90, 60_000), (7, 3_600_000)];
        let rates = rates.map(|(tasks, ms)| Rate::new(tasks, ms, None));
        assert_eq!(rates.map(|rate| rate.burst()), [5, 1, 1]);
        assert_eq!(rates.map(|rate| rate.to_string()), ["5/s", "90/min", "7/h"]);
    }

    #[test]
    fn a_look_waits_for_what_comes_in_a_tenth_of_a_second() {
        let look = |tasks, burst| {
            let bucket = fresh(Rate::new(tasks, 1000, Some(burst)));
            bucket.take(burst, at(0)).worth_a_look(at(0))
        };
        assert_eq!(look(1000, 1000), at(100_000));
        assert_eq!(look(50, 10), at(100_000));
        assert_eq!(look(1000, 10), at(5_000), "a full bucket would lose tokens");
        assert_eq!(look(50, 1), at(20_000));
        assert_eq!(look(2, 10), at(500_000));
    }

    #[test]
    fn after_a_step_of_the_clock_or_under_another_rate_nobody_waits_for_what_was() {
        let (slow, fast) = (
            Rate::new(1, 3_600_000, Some(10)),
            Rate::new(50, 1000, Some(10)),
        );
        let empty = fresh(slow).take(10, at(0));
        let stored = |of: Bucket| of.full_at.map(|full_at| (of.rate, full_at));
        assert_eq!(Bucket::new(slow, stored(empty)), empty);
        assert_eq!(Bucket::new(fast, stored(empty)), fresh(fast));
        assert_eq!(empty.tokens(at(-1_000_000)), 0, "no step is so small");
        assert_eq!(empty.tokens(at(-6_000_000)), 10);
    }

    proptest! {
        /// Whoever takes what is there whenever they look never takes more than the rate gives in any span, and one burst;
        /// and whoever comes when the bucket says so finds a token, and not a microsecond earlier.
        #[test]
        fn no_span_of_time_sees_more_than_its_rate_and_one_burst(
            (tasks, period_ms, burst) in (1..2_000_i32, prop::sample::select(vec![1_000, 60_000, 3_600_000]), 1..40_i32),
            looks in prop::collection::vec((0..3_000_000_i64, 0..60_i32, any::<bool>()), 1..60),
        ) {
            let rate = Rate::new(tasks, period_ms, Some(burst));
            let (mut bucket, mut now) = (fresh(rate), 0_i64);
            let mut starts: Vec<(i64, i64)> = Vec::new();
            for (pause, wanted, on_time) in looks {
                now += pause;
                if on_time {
                    let next = bucket.free_at(at(now));
                    let next = (next - at(0)).num_microseconds().unwrap();
                    prop_assert!(next >= now);
                    if next > now {
                        prop_assert_eq!(bucket.tokens(at(next - 1)), 0);
                    }
                    now = next;
                    prop_assert!(bucket.tokens(at(now)) >= 1);
                }
                let tokens = bucket.tokens(at(now));
                prop_assert!((0..=burst).contains(&tokens));
                prop_assert!(bucket.worth_a_look(at(now)) >= bucket.free_at(at(now)));
                let taken = wanted.min(tokens);
                bucket = bucket.take(taken, at(now));
                // What is rounded up to a microsecond may cost the last token that very microsecond.
                prop_assert!((tokens - taken - 1..=tokens - taken).contains(&bucket.tokens(at(now))));
                starts.push((now, i64::from(taken)));
            }
            for (first, (from, _)) in starts.iter().enumerate() {
                let mut sum = 0;
                for (until, taken) in starts.iter().skip(first) {
                    sum += taken;
                    // The time of a burst is rounded up to a microsecond, which may bring the next token that much earlier.
                    let span = i128::from(until - from + 1);
                    let given = span * i128::from(tasks) / (i128::from(period_ms) * 1000);
                    prop_assert!(i128::from(sum) <= given + i128::from(burst));
                }
            }
        }
    }
}
