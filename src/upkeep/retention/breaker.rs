//! When a kind of batch rests: after one that failed, or took so long that the hot statements feel it.

use std::time::{Duration, Instant};

/// A batch that takes longer is one too many on a database that has other things to do.
const SLOW: Duration = Duration::from_secs(2);
/// The first rest; doubled at each further one, up to the last.
const RESTS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_mins(10));

/// What a batch has turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// As before.
    None,
    /// It rests from now on.
    Opened,
    /// It is well again.
    Closed,
}

/// Closed while all is well.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Rests in a row.
    rests: u32,
    until: Option<Instant>,
}

impl Breaker {
    /// Whether the next batch may begin.
    pub(super) fn allows(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// A batch was done and took this long.
    pub(super) fn done(&mut self, took: Duration, now: Instant) -> Turn {
        if took > SLOW {
            return self.failed(now);
        }
        self.until = None;
        match std::mem::take(&mut self.rests) {
            0 => Turn::None,
            _ => Turn::Closed,
        }
    }

    /// A batch failed.
    pub(super) fn failed(&mut self, now: Instant) -> Turn {
        let rest = RESTS.0.saturating_mul(1 << self.rests.min(16));
        self.until = Some(now + rest.min(RESTS.1));
        self.rests = self.rests.saturating_add(1);
        if self.rests == 1 {
            Turn::Opened
        } else {
            Turn::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_longer_each_time_and_says_so_once() {
        let mut breaker = Breaker::default();
        let mut now = Instant::now();
        assert!(breaker.allows(now));
        let mut rests = Vec::new();
        for turn in [Turn::Opened, Turn::None, Turn::None] {
            assert_eq!(breaker.failed(now), turn);
            let begun = now;
            while !breaker.allows(now) {
                now += Duration::from_secs(1);
            }
            rests.push((now - begun).as_secs());
        }
        assert_eq!(rests, [10, 20, 40]);
        for _ in 0..40 {
            breaker.failed(now);
        }
        assert!(!breaker.allows(now + Duration::from_secs(599)));
        assert!(breaker.allows(now + Duration::from_mins(10)));
        assert_eq!(breaker.done(Duration::from_millis(5), now), Turn::Closed);
        assert!(breaker.allows(now));
        assert_eq!(breaker.done(Duration::from_millis(5), now), Turn::None);
    }

    #[test]
    fn a_slow_batch_is_as_bad_as_a_failed_one() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        assert_eq!(breaker.done(SLOW * 2, now), Turn::Opened);
        assert!(!breaker.allows(now));
        assert_eq!(breaker.done(SLOW * 2, now), Turn::None);
        assert!(!breaker.allows(now + Duration::from_secs(19)));
    }
}
