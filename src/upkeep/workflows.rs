//! The walk over the runs of workflows that are not settled: finds what replicas that died left to do, and the bits that
//! went astray.

use deadpool_postgres::GenericClient;

use crate::dispatch::Runs;
use crate::domain::id::RunId;
use crate::store::{Error, runs, upkeep};

/// Runs in one look: a few index probes each, so a look takes some 20 ms.
const BATCH: i32 = 1_000;

/// Where the walk stands. It goes round and round, a batch a tick; a round that a death or the beginning of the term asks
/// for is done without pauses: it finds what those who are gone owed.
#[derive(Debug, Default)]
pub(super) struct Walk {
    last: RunId,
    been_round: bool,
    died_at: Option<i64>,
}

/// What one look found.
#[derive(Debug)]
pub(super) struct Walked {
    /// The last run that was looked at; none at the end of the round.
    last: Option<RunId>,
    needy: Vec<RunId>,
    /// When a replica died last.
    died_at: Option<i64>,
}

/// Looks at the runs after this one.
pub(super) async fn walk(client: &impl GenericClient, from: RunId) -> Result<Walked, Error> {
    // Before the look, which then is newer than the death.
    let died_at = upkeep::find_last_death(client).await?;
    let walked = runs::walk(client, from, BATCH).await?;
    let needy = if walked.is_empty() {
        Vec::new()
    } else {
        runs::look(client, &walked).await?
    };
    let is_full = i32::try_from(walked.len()).is_ok_and(|found| found >= BATCH);
    Ok(Walked {
        last: walked.last().copied().filter(|_| is_full),
        needy: needy.into_iter().map(|(run, _)| run).collect(),
        died_at,
    })
}

impl Walk {
    /// Where the next look begins.
    pub(super) fn from(&self) -> RunId {
        self.last
    }

    /// Hands on what was found, nothing where another replica did the chores. Answers whether the next look is to come
    /// at once.
    pub(super) fn goes_on(&mut self, walked: Option<Walked>, runs: &Runs) -> bool {
        let Some(walked) = walked else { return false };
        let goes_on = self.step(&walked);
        runs.look_at(walked.needy);
        goes_on
    }

    fn step(&mut self, walked: &Walked) -> bool {
        let from_the_beginning = self.last == RunId::default();
        let is_news = walked.died_at > self.died_at;
        self.died_at = self.died_at.max(walked.died_at);
        if is_news {
            self.been_round = false;
        }
        if is_news && !from_the_beginning {
            // What this round has looked at before may owe its end to the one that is dead now.
            self.last = RunId::default();
            return true;
        }
        self.last = walked.last.unwrap_or_default();
        self.been_round |= walked.last.is_none();
        !self.been_round
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(last: Option<RunId>, died_at: Option<i64>) -> Walked {
        Walked {
            last,
            needy: Vec::new(),
            died_at,
        }
    }

    #[test]
    fn the_first_round_of_a_term_has_no_pauses_and_the_next_ones_have() {
        let mut walk = Walk::default();
        assert!(walk.step(&found(Some(7), None)));
        assert!(walk.step(&found(Some(9), None)));
        assert_eq!(walk.from(), 9);
        assert!(!walk.step(&found(None, None)));
        assert_eq!(walk.from(), 0);
        assert!(!walk.step(&found(Some(7), None)));
    }

    #[test]
    fn a_death_asks_for_a_round_from_the_beginning_without_pauses() {
        let mut walk = Walk::default();
        assert!(!walk.step(&found(None, Some(1))));
        assert!(!walk.step(&found(Some(7), Some(1))));
        assert!(walk.step(&found(Some(9), Some(2))));
        assert_eq!(walk.from(), 0);
        assert!(walk.step(&found(Some(7), Some(2))));
        assert!(!walk.step(&found(None, Some(2))));

        // A look from the beginning is one of that round already.
        assert!(walk.step(&found(Some(7), Some(3))));
        assert_eq!(walk.from(), 7);
        assert!(!walk.step(&found(None, Some(3))));
        // The dead are forgotten some day, which is no death.
        assert!(!walk.step(&found(Some(7), None)));
    }
}
