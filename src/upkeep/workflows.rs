//! The walk over the runs of workflows that are not settled: finds what replicas that died left to do, and the bits that
//! went astray.

use deadpool_postgres::GenericClient;

use super::walk::Walk;
use crate::dispatch::Runs;
use crate::domain::id::RunId;
use crate::store::{Error, runs, upkeep};

/// Runs in one look: a few index probes each, so a look takes some 20 ms.
const BATCH: i32 = 1_000;

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
pub(super) async fn walk(
    client: &impl GenericClient,
    after: Option<RunId>,
) -> Result<Walked, Error> {
    // Before the look, which then is newer than the death.
    let died_at = upkeep::find_last_death(client).await?;
    let walked = runs::walk(client, after.unwrap_or_default(), BATCH).await?;
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

impl Walked {
    /// Hands on what was found. Answers whether the next look is to come at once.
    pub(super) fn take_up(self, walk: &mut Walk, runs: &Runs) -> bool {
        let goes_on = walk.step(self.last, self.died_at);
        runs.look_at(self.needy);
        goes_on
    }
}
