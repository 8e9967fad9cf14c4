//! The walk over the runs of workflows that are not settled: finds what replicas that died left to do, and the bits that
//! went astray.

use deadpool_postgres::GenericClient;

use crate::dispatch::Runs;
use crate::domain::id::RunId;
use crate::store::{Error, runs};

/// Runs in one look: a few index probes each, so a look takes some 20 ms.
const BATCH: i32 = 1_000;

/// Where the walk stands. It goes round and round, a batch a tick; the first round of a term, which is what was left
/// before it, is done without pauses.
#[derive(Debug, Default)]
pub(super) struct Walk {
    last: RunId,
    been_round: bool,
}

/// What one look found.
#[derive(Debug)]
pub(super) struct Walked {
    /// The last run that was looked at; none at the end of the round.
    last: Option<RunId>,
    needy: Vec<RunId>,
}

/// Looks at the runs after this one.
pub(super) async fn walk(client: &impl GenericClient, from: RunId) -> Result<Walked, Error> {
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
        runs.look_at(walked.needy);
        self.been_round |= walked.last.is_none();
        self.last = walked.last.unwrap_or_default();
        !self.been_round
    }
}
