//! Whether this replica may still start work, by a clock that goes on while the machine is suspended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A point on the clock that counts suspend, in milliseconds since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(u64);

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
// Elsewhere the monotonic clock is the nearest there is.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

impl BootTime {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let milliseconds = clock_gettime(CLOCK).map_or(u64::MAX, |time| {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            let nanoseconds = u64::try_from(time.tv_nsec()).unwrap_or(0);
            seconds * 1000 + nanoseconds / 1_000_000
        });
        Self(milliseconds)
    }

    /// How long ago.
    #[must_use]
    pub fn age(self) -> Duration {
        Duration::from_millis(Self::now().0.saturating_sub(self.0))
    }
}

/// A replica is fit to start work for half the death time after it SENT its last successful heartbeat: by the
/// time that others may put its claims back it has long stopped, even if it was frozen in between.
#[derive(Debug)]
pub struct Fitness {
    last_beat: AtomicU64,
    failed_beats: AtomicU64,
    limit: Duration,
}

impl Fitness {
    /// Of a replica that registered at `started` and is declared dead after `dead_after` of silence.
    #[must_use]
    pub fn new(started: BootTime, dead_after: Duration) -> Self {
        Self {
            last_beat: AtomicU64::new(started.0),
            failed_beats: AtomicU64::new(0),
            limit: dead_after / 2,
        }
    }

    /// A heartbeat that was sent at `sent` has been stored.
    pub fn beaten(&self, sent: BootTime) {
        self.last_beat.fetch_max(sent.0, Ordering::Relaxed);
    }

    /// A heartbeat has failed.
    pub fn missed(&self) {
        self.failed_beats.fetch_add(1, Ordering::Relaxed);
    }

    /// How many heartbeats have failed: who judges others by what it has seen begins anew when this grows.
    #[must_use]
    pub fn failed_beats(&self) -> u64 {
        self.failed_beats.load(Ordering::Relaxed)
    }

    /// Whether claims that were asked for at `claimed` may be delivered now.
    #[must_use]
    pub fn allows(&self, claimed: BootTime) -> bool {
        claimed.age() < self.limit
            && BootTime(self.last_beat.load(Ordering::Relaxed)).age() < self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ago(milliseconds: u64) -> BootTime {
        BootTime(BootTime::now().0 - milliseconds)
    }

    #[test]
    fn a_stale_beat_and_a_stale_claim_both_forbid() {
        let fitness = Fitness::new(ago(6_000), Duration::from_secs(10));
        assert!(!fitness.allows(ago(0)));
        fitness.beaten(ago(1_000));
        assert!(fitness.allows(ago(0)));
        assert!(!fitness.allows(ago(6_000)));
        fitness.beaten(ago(9_000));
        assert!(fitness.allows(ago(0)), "an older beat takes nothing back");
    }
}
