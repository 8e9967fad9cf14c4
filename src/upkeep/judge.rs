//! Who is dead: plain data, judged by one replica on its own monotonic clock.
//!
//! A replica is dead when its beat counter stood still for a whole death time during which the judge's own beats
//! never failed. So neither a step of a clock nor an outage that made every beat stale runs everything twice.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::domain::id::DispatcherId;
use crate::store::dispatchers::Dispatcher;

/// What the judge has seen.
#[derive(Debug)]
pub struct Judge {
    dead_after: Duration,
    /// The beat of each, and since when it has stood there.
    seen: HashMap<DispatcherId, (i64, Instant)>,
}

impl Judge {
    /// A judge that has seen nothing yet.
    #[must_use]
    pub fn new(dead_after: Duration) -> Self {
        Self {
            dead_after,
            seen: HashMap::new(),
        }
    }

    /// The judge's own beat failed: what it saw before proves nothing any more.
    pub fn blinded(&mut self) {
        self.seen.clear();
    }

    /// Takes in who is said to be alive; answers those that have been silent for too long, with their beat.
    pub fn look(
        &mut self,
        own: DispatcherId,
        alive: &[Dispatcher],
        now: Instant,
    ) -> Vec<(DispatcherId, i64)> {
        let before = std::mem::take(&mut self.seen);
        for other in alive.iter().filter(|other| other.id != own) {
            let since = match before.get(&other.id) {
                Some((beat, since)) if *beat == other.beat => *since,
                _ => now,
            };
            self.seen.insert(other.id, (other.beat, since));
        }
        let silent = self
            .seen
            .iter()
            .filter(|(_, (_, since))| now - *since > self.dead_after);
        silent.map(|(id, (beat, _))| (*id, *beat)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(id: DispatcherId, beat: i64) -> Dispatcher {
        Dispatcher {
            id,
            name: String::new(),
            beat,
            draining: false,
            awaiting: false,
        }
    }

    #[test]
    fn a_beat_that_stands_still_for_the_death_time_is_dead() {
        let (mut judge, start) = (Judge::new(Duration::from_secs(15)), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(judge.look(1, &[alive(1, 0), alive(2, 7)], at(0)).is_empty());
        assert!(judge.look(1, &[alive(2, 7)], at(15)).is_empty());
        assert_eq!(judge.look(1, &[alive(2, 7)], at(16)), [(2, 7)]);
        assert!(
            judge.look(1, &[alive(2, 8)], at(17)).is_empty(),
            "one beat saves it"
        );
    }

    #[test]
    fn a_judge_whose_own_beats_failed_starts_over() {
        let (mut judge, start) = (Judge::new(Duration::from_secs(15)), Instant::now());
        judge.look(1, &[alive(2, 7)], start);
        judge.blinded();
        assert!(
            judge
                .look(1, &[alive(2, 7)], start + Duration::from_secs(60))
                .is_empty()
        );
        assert_eq!(
            judge.look(1, &[alive(2, 7)], start + Duration::from_secs(76)),
            [(2, 7)]
        );
    }

    #[test]
    fn nobody_judges_himself() {
        let (mut judge, start) = (Judge::new(Duration::from_secs(1)), Instant::now());
        judge.look(1, &[alive(1, 7)], start);
        assert!(
            judge
                .look(1, &[alive(1, 7)], start + Duration::from_secs(9))
                .is_empty()
        );
    }
}
