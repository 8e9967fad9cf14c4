//! Whose turn it is when a slot is free and both callers and rows wait for one.
//!
//! Callers come first, since somebody waits for each of them. But as long as rows wait too, they take no more slots
//! between two looks of the sweep than its last look gave to rows, so that neither side starves the other. While the
//! sweep looks, callers leave it the slots that it has counted on, or its claims would have to be put back.

use std::time::{Duration, Instant};

/// Callers wait no longer than this for a sweep to look: a slow database delays them, and does not stop them.
const PATIENCE: Duration = Duration::from_millis(100);
/// Slots that callers take in a row at most while rows wait, however many the last look took.
const LONGEST_RUN: usize = 64;

/// What a look of the sweep says about rows that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// None that it could claim.
    Nobody,
    /// It claimed so many, and there may be more.
    Claimed(usize),
    /// No slot was free to claim for, and there may be rows.
    Unseen,
}

/// The turns of one term.
#[derive(Debug)]
pub struct Turns {
    rows_wait: bool,
    looking: bool,
    /// Slots that callers may take before the sweep's next look, while rows wait.
    left: usize,
    /// Since when a caller stands back although a slot is free for it.
    held_since: Option<Instant>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            rows_wait: false,
            looking: false,
            left: 1,
            held_since: None,
        }
    }
}

impl Turns {
    /// The sweep counts free slots and claims for them.
    pub fn look_begins(&mut self) {
        self.looking = true;
    }

    /// The sweep is done with that.
    pub fn look_ended(&mut self, waiting: Waiting) {
        self.looking = false;
        match waiting {
            Waiting::Nobody => self.rows_wait = false,
            Waiting::Unseen => {
                // A look without a free slot changes nobody's turn.
                self.rows_wait = true;
                return;
            }
            Waiting::Claimed(rows) => {
                self.rows_wait = true;
                self.left = rows.clamp(1, LONGEST_RUN);
            }
        }
        self.left = self.left.max(1);
        self.held_since = None;
    }

    /// Whether a caller may take the slot that is free for it.
    ///
    /// # Errors
    /// Not before the time given, unless the sweep looks earlier.
    pub(super) fn may_take(&mut self, now: Instant) -> Result<(), Instant> {
        if !self.looking && (!self.rows_wait || self.left > 0) {
            self.held_since = None;
            return Ok(());
        }
        let until = *self.held_since.get_or_insert(now) + PATIENCE;
        if now >= until { Ok(()) } else { Err(until) }
    }

    /// No slot is free for any caller: none stands back.
    pub(super) fn none_free(&mut self) {
        self.held_since = None;
    }

    /// A caller took one.
    pub(super) fn taken(&mut self) {
        if self.rows_wait {
            self.left = self.left.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides want every slot of a pool; answers how many of `rounds` freed slots the callers got.
    fn share(slots: usize, rounds: usize) -> usize {
        let (mut turns, now) = (Turns::default(), Instant::now());
        let mut callers = 0;
        turns.look_ended(Waiting::Unseen);
        for _ in 0..rounds {
            let mut free = slots;
            while free > 0 && turns.may_take(now).is_ok() {
                turns.taken();
                callers += 1;
                free -= 1;
            }
            turns.look_begins();
            assert!(turns.may_take(now).is_err());
            turns.look_ended(if free > 0 {
                Waiting::Claimed(free)
            } else {
                Waiting::Unseen
            });
        }
        callers
    }

    #[test]
    fn both_sides_get_about_half() {
        for slots in [1, 2, 7, 40] {
            let (got, all) = (share(slots, 1000), 1000 * slots);
            assert!(got * 10 > all * 4 && got * 10 < all * 6, "{slots}: {got}");
        }
    }

    #[test]
    fn without_rows_callers_take_what_is_free() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.look_ended(Waiting::Nobody);
        for _ in 0..1000 {
            assert_eq!(turns.may_take(now), Ok(()));
            turns.taken();
        }
    }

    #[test]
    fn a_sweep_that_does_not_come_is_not_waited_for_long() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.look_begins();
        assert_eq!(turns.may_take(now), Err(now + PATIENCE));
        assert_eq!(turns.may_take(now + PATIENCE / 2), Err(now + PATIENCE));
        assert_eq!(turns.may_take(now + PATIENCE), Ok(()));
        turns.none_free();
        let later = now + PATIENCE * 3;
        assert_eq!(
            turns.may_take(later),
            Err(later + PATIENCE),
            "patience counts while a slot is free"
        );
    }

    #[test]
    fn a_caller_may_always_go_after_a_look() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for waiting in [Waiting::Nobody, Waiting::Claimed(0), Waiting::Claimed(3)] {
            turns.look_ended(Waiting::Unseen);
            while turns.may_take(now).is_ok() {
                turns.taken();
            }
            turns.look_begins();
            turns.look_ended(waiting);
            assert_eq!(turns.may_take(now), Ok(()), "{waiting:?}");
        }
    }
}
