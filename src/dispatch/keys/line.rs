//! The keys that are to be looked at, now or later.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::domain::id::KeyHash;

/// Rows that one look at a key answers. Whoever finds its turn taken leaves one, so there may be any number.
const LOOKS: usize = 500;

/// Why a key is looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    /// Rows that this answers.
    pub(super) looks: BTreeSet<i64>,
    /// How often it was put off.
    pub(super) tries: u32,
    /// The time of the token that it was put off for, where nothing else has called since.
    pub(super) token: Option<DateTime<Utc>>,
}

impl Ask {
    fn add(&mut self, other: Self) {
        let room = LOOKS.saturating_sub(self.looks.len());
        // What has no room is read again.
        self.looks.extend(other.looks.into_iter().take(room));
        self.tries = self.tries.min(other.tries);
        self.token = self.token.and(other.token);
    }
}

/// Keys that are to be looked at. Each one waits for that in one place.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) now: BTreeMap<KeyHash, Ask>,
    /// Somebody else is at it, or its token is still to come: then.
    later: BTreeMap<KeyHash, (Instant, Ask)>,
    /// The same in the order of their times.
    due: BTreeSet<(Instant, KeyHash)>,
}

impl Line {
    /// Answers whether there is something to do now. Rows are read again for as long as they stand, so that one which is
    /// known does not call a key back that was put off; a new one, or the end of a task, does.
    pub(super) fn add(&mut self, key: KeyHash, mut ask: Ask) -> bool {
        if let Some((_, put_off)) = self.later.get(&key) {
            let known = &put_off.looks;
            let is_news =
                ask.looks.is_empty() || known.len() < LOOKS && !ask.looks.is_subset(known);
            if !is_news {
                return false;
            }
            if let Some((_, put_off)) = self.come_back(key) {
                ask.add(put_off);
            }
        }
        self.call(key, ask);
        true
    }

    fn call(&mut self, key: KeyHash, ask: Ask) {
        match self.now.entry(key) {
            Entry::Occupied(mut called) => called.get_mut().add(ask),
            Entry::Vacant(free) => {
                free.insert(ask);
            }
        }
    }

    /// Until then, or until the earlier time that it is put off to already, unless somebody has called for the key
    /// meanwhile. Answers whether it is the next one to come back.
    pub(super) fn put_off(&mut self, key: KeyHash, mut ask: Ask, mut until: Instant) -> bool {
        if self.now.contains_key(&key) {
            self.call(key, ask);
            return false;
        }
        if let Some((at, other)) = self.come_back(key) {
            until = until.min(at);
            ask.add(other);
        }
        self.later.insert(key, (until, ask));
        self.due.insert((until, key));
        self.due.first() == Some(&(until, key))
    }

    fn come_back(&mut self, key: KeyHash) -> Option<(Instant, Ask)> {
        let (until, ask) = self.later.remove(&key)?;
        self.due.remove(&(until, key));
        Some((until, ask))
    }

    /// Calls those whose time has come; answers when the next one's does.
    pub(super) fn call_due(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let (until, key) = self.due.first().copied()?;
            if until > now {
                return Some(until);
            }
            if let Some((_, ask)) = self.come_back(key) {
                self.call(key, ask);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

    const KEY: KeyHash = 7;

    fn row(id: i64) -> Ask {
        Ask {
            looks: BTreeSet::from([id]),
            ..Ask::default()
        }
    }

    fn take(line: &mut Line) -> Option<Ask> {
        line.now.remove(&KEY)
    }

    #[test]
    fn a_key_that_was_put_off_has_one_wait_however_often_its_row_is_read() {
        let (mut line, now) = (Line::default(), Instant::now());
        assert!(line.add(KEY, row(1)));
        let mut ask = take(&mut line).unwrap();
        ask.tries = 5;
        assert!(line.put_off(KEY, ask, now + PAUSES.1));
        for _ in 0..100 {
            assert!(!line.add(KEY, row(1)));
        }
        assert_eq!(line.call_due(now), Some(now + PAUSES.1));
        assert!(take(&mut line).is_none());
        assert_eq!(line.call_due(now + PAUSES.1), None);
        assert_eq!(take(&mut line).unwrap().tries, 5);
    }

    #[test]
    fn the_end_of_a_task_and_a_new_row_call_a_key_back_and_its_wait_is_over() {
        let now = Instant::now();
        for (news, known) in [(Ask::default(), vec![1]), (row(2), vec![1, 2])] {
            let mut line = Line::default();
            line.put_off(KEY, row(1), now);
            assert!(line.add(KEY, news));
            assert!(line.due.is_empty() && line.later.is_empty());
            let ask = take(&mut line).unwrap();
            assert_eq!(ask.looks.into_iter().collect::<Vec<_>>(), known);
        }
    }

    #[test]
    fn the_earlier_time_that_a_key_is_put_off_to_counts() {
        let (mut line, now) = (Line::default(), Instant::now());
        assert!(line.put_off(KEY, row(1), now + PAUSES.1));
        line.put_off(KEY, row(2), now + 2 * PAUSES.1);
        assert!(!line.put_off(KEY + 1, row(3), now + 3 * PAUSES.1));
        assert!(line.put_off(KEY + 1, row(3), now + PAUSES.0));
        assert_eq!(line.call_due(now), Some(now + PAUSES.0));
        assert_eq!(line.call_due(now + PAUSES.0), Some(now + PAUSES.1));
        assert_eq!(line.now.len(), 1);
        assert_eq!(line.call_due(now + PAUSES.1), None);
        assert_eq!(take(&mut line).unwrap().looks.len(), 2);
    }

    #[test]
    fn news_are_no_wait_for_a_token() {
        let token = || Ask {
            token: Some(DateTime::UNIX_EPOCH),
            ..Ask::default()
        };
        let (mut line, now) = (Line::default(), Instant::now());
        line.put_off(KEY, token(), now);
        line.call_due(now);
        assert!(take(&mut line).unwrap().token.is_some());
        line.put_off(KEY, token(), now);
        line.add(KEY, Ask::default());
        assert!(take(&mut line).unwrap().token.is_none());
    }

    #[test]
    fn a_look_answers_so_many_rows_and_the_rest_calls_nobody() {
        let (mut line, now) = (Line::default(), Instant::now());
        for id in 0..1_000 {
            line.add(KEY, row(id));
        }
        let ask = take(&mut line).unwrap();
        assert_eq!(ask.looks.len(), LOOKS);
        line.put_off(KEY, ask, now);
        assert!(!line.add(KEY, row(999)));
    }

    #[test]
    fn what_is_called_for_while_it_is_looked_at_is_looked_at_again_at_once() {
        let (mut line, now) = (Line::default(), Instant::now());
        line.add(KEY, row(1));
        let taken = take(&mut line).unwrap();
        line.add(KEY, Ask::default());
        line.put_off(KEY, taken, now + PAUSES.1);
        assert_eq!(line.call_due(now), None);
        assert_eq!(take(&mut line).unwrap().looks.len(), 1);
    }
}
