//! How long a failed task waits before its next attempt.

use std::time::Duration;

/// `min(base × multiplier^attempt, max)`, then jittered over its whole length ("full jitter").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Wait after the first failure.
    pub base: Duration,
    /// Growth per failure, at least 1.
    pub multiplier: f64,
    /// Upper bound of the wait.
    pub max: Duration,
}

impl Backoff {
    /// The wait after the failure of `attempt`, which counts failures before this one, from 0.
    /// `jitter` in `0.0..=1.0` chooses the point in the span; saturates instead of overflowing.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let exponent = i32::try_from(attempt).unwrap_or(i32::MAX);
        let span = self.base.as_secs_f64() * self.multiplier.max(1.0).powi(exponent);
        let span = if span.is_finite() {
            span.min(self.max.as_secs_f64())
        } else {
            self.max.as_secs_f64()
        };
        Duration::from_secs_f64(span * jitter.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(base: u64, multiplier: f64, max: u64) -> Backoff {
        Backoff {
            base: Duration::from_secs(base),
            multiplier,
            max: Duration::from_secs(max),
        }
    }

    #[test]
    fn it_doubles_and_stops_at_the_maximum() {
        let backoff = seconds(1, 2.0, 600);
        let waits: Vec<u64> = [0, 1, 2, 9, 10, 4_000_000_000]
            .iter()
            .map(|n| backoff.delay(*n, 1.0).as_secs())
            .collect();
        assert_eq!(waits, [1, 2, 4, 512, 600, 600]);
    }

    proptest! {
        #[test]
        fn it_never_passes_the_maximum(base in 0u64..100_000, multiplier in 1.0f64..100.0, max in 0u64..100_000, attempt: u32, jitter in 0.0f64..=1.0) {
            let backoff = seconds(base, multiplier, max);
            prop_assert!(backoff.delay(attempt, jitter) <= backoff.max);
        }

        #[test]
        fn it_never_shrinks_with_the_attempt(base in 1u64..1000, multiplier in 1.0f64..10.0, attempt in 0u32..100) {
            let backoff = seconds(base, multiplier, 1_000_000);
            prop_assert!(backoff.delay(attempt, 1.0) <= backoff.delay(attempt + 1, 1.0));
        }
    }
}
