//! How often the claim index is looked at as a whole.

use std::time::Duration;

/// Shortest time between two looks at the whole claim index.
const SCAN_PAUSE: Duration = Duration::from_millis(5);
/// Nobody tells a replica that does not sleep of new work, so it looks for tenants that have begun to wait this often.
pub(super) const BUSY_POLL: Duration = Duration::from_millis(50);
/// Such looks take at most one part in this many of the time.
const SCAN_SHARE: u32 = 10;

/// The pause after a look at the claim index that took so long, and the time of the next one: when the next row is due,
/// where one is. A busy replica looks more often, but whatever it hopes to find, looks keep to their share of the time: behind
/// somebody's long snapshot the index is full of dead entries and one look can take longer than a claim.
pub(super) fn pace(
    took: Duration,
    due: Option<Duration>,
    is_busy: bool,
    poll: Duration,
) -> (Duration, Duration) {
    let pause = (took * SCAN_SHARE).min(poll).max(SCAN_PAUSE);
    let often = if is_busy { poll.min(BUSY_POLL) } else { poll };
    (pause, due.unwrap_or(often).min(often).max(pause))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn looks_at_the_index_keep_to_their_share_of_the_time() {
        let poll = ms(1000);
        assert_eq!(pace(ms(1), None, true, poll), (ms(10), ms(50)));
        assert_eq!(pace(ms(1), Some(ms(2)), false, poll), (ms(10), ms(10)));
        assert_eq!(pace(ms(1), None, false, poll), (ms(10), poll));
        // Full of dead entries.
        assert_eq!(pace(ms(40), None, true, poll), (ms(400), ms(400)));
        assert_eq!(pace(ms(40), Some(ms(0)), true, poll), (ms(400), ms(400)));
        assert_eq!(pace(ms(400), None, true, poll), (poll, poll));
    }

    #[test]
    fn the_shortest_poll_is_no_shorter_than_a_pause() {
        assert_eq!(pace(ms(1), None, false, ms(1)), (SCAN_PAUSE, SCAN_PAUSE));
    }
}
