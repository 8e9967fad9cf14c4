//! A walk over what may need something, a batch a tick, round and round; a round that a death or the beginning of the term
//! asks for is done without pauses: it finds what those who are gone owed.

/// Where a walk stands.
#[derive(Debug, Default)]
pub(super) struct Walk {
    last: Option<i64>,
    been_round: bool,
    died_at: Option<i64>,
}

impl Walk {
    /// The last one that was looked at; none at the beginning of a round.
    pub(super) fn last(&self) -> Option<i64> {
        self.last
    }

    /// A look has come to `last` (none at the end of the round); `died_at` is when a replica died last, as of before the
    /// look. Answers whether the next look is to come at once.
    pub(super) fn step(&mut self, last: Option<i64>, died_at: Option<i64>) -> bool {
        let from_the_beginning = self.last.is_none();
        let is_news = died_at > self.died_at;
        self.died_at = self.died_at.max(died_at);
        if is_news {
            self.been_round = false;
        }
        if is_news && !from_the_beginning {
            // What this round has looked at before may be owed by the one that is dead now.
            self.last = None;
            return true;
        }
        self.last = last;
        self.been_round |= last.is_none();
        !self.been_round
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_round_of_a_term_has_no_pauses_and_the_next_ones_have() {
        let mut walk = Walk::default();
        assert!(walk.step(Some(7), None));
        assert!(walk.step(Some(9), None));
        assert_eq!(walk.last(), Some(9));
        assert!(!walk.step(None, None));
        assert_eq!(walk.last(), None);
        assert!(!walk.step(Some(7), None));
    }

    #[test]
    fn a_death_asks_for_a_round_from_the_beginning_without_pauses() {
        let mut walk = Walk::default();
        assert!(!walk.step(None, Some(1)));
        assert!(!walk.step(Some(7), Some(1)));
        assert!(walk.step(Some(9), Some(2)));
        assert_eq!(walk.last(), None);
        assert!(walk.step(Some(7), Some(2)));
        assert!(!walk.step(None, Some(2)));

        // A look from the beginning is one of that round already.
        assert!(walk.step(Some(7), Some(3)));
        assert_eq!(walk.last(), Some(7));
        assert!(!walk.step(None, Some(3)));
        // The dead are forgotten some day, which is no death.
        assert!(!walk.step(Some(7), None));
    }
}
