//! One look at what there is, all in one go.

use std::collections::HashSet;
use std::time::Duration;

use crate::api::operators::SILENCE;
use crate::domain::id::RouteId;
use crate::domain::pause::Pause;
use crate::store::dispatchers::{self, Replica};
use crate::store::events::{self, Flow, NewLetter, Unserved};
use crate::store::queues::{self, Queue, Wanted};
use crate::store::workers::{self, Worker};
use crate::store::{Client, Error, pauses};

/// Queues that are told of: those that have something unfinished, or had just now.
const QUEUES: i32 = 50;
/// Counts of them stop here: a look is taken once a second.
pub(super) const COUNTED: i64 = 1_000;
/// What a rate is measured over.
const FLOW: Duration = Duration::from_secs(5);
/// Dead letters are looked for so far back: a transaction may commit that much later than it began.
const LETTERS: Duration = Duration::from_secs(10);
/// Dead letters that are told of one by one, at most.
const MOST_LETTERS: i64 = 1_000;
/// Lines of any other list.
const MOST: i64 = 1_000;

/// What one look has found.
#[derive(Debug)]
pub(super) struct Look {
    /// Those with something unfinished, now or just now.
    pub(super) queues: Vec<Queue>,
    /// There are more of them.
    pub(super) more: bool,
    pub(super) flows: Vec<Flow>,
    pub(super) replicas: Vec<Replica>,
    pub(super) workers: Vec<Worker>,
    pub(super) pauses: Vec<Pause>,
    pub(super) letters: Vec<NewLetter>,
    pub(super) unserved: Vec<Unserved>,
}

pub(super) async fn read(client: &Client) -> Result<Look, Error> {
    let flows = events::read_flow(client, FLOW).await?;
    let mut busy = events::find_busy(client, QUEUES + 1).await?;
    // What comes and goes at once leaves nothing unfinished.
    let known: HashSet<RouteId> = busy.iter().copied().collect();
    let flowing = flows.iter().filter_map(|flow| flow.route);
    busy.extend(flowing.filter(|route| !known.contains(route)));
    let most = usize::try_from(QUEUES).unwrap_or_default();
    let more = busy.len() > most;
    busy.truncate(most);
    let wanted = Wanted {
        routes: Some(&busy),
        ..Wanted::default()
    };
    Ok(Look {
        queues: queues::list(client, wanted, COUNTED + 1, i64::from(QUEUES)).await?,
        more,
        flows,
        replicas: dispatchers::list(client, SILENCE, MOST, 1).await?,
        workers: workers::list(client, SILENCE, MOST, None).await?,
        pauses: pauses::read(client).await?,
        letters: events::find_new_letters(client, LETTERS, MOST_LETTERS).await?,
        unserved: events::list_unserved(client, MOST).await?,
    })
}
