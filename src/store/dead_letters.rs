//! Dead letters: listed, shown, discarded, redriven one by one.

use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::history::{self, Failed};
use super::{Client, Error};
use crate::domain::id::TaskId;

const LIST_DEAD_LETTERS: &str = include_str!("../../sql/list_dead_letters.sql");
const READ_DEAD_LETTER: &str = include_str!("../../sql/read_dead_letter.sql");
const LIST_REDRIVEN: &str = include_str!("../../sql/list_redriven.sql");
const COUNT_LETTERS: &str = include_str!("../../sql/count_letters.sql");
const COUNT_DEAD_LETTERS: &str = include_str!("../../sql/count_dead_letters.sql");
const DISCARD_DEAD_LETTERS: &str = include_str!("../../sql/discard_dead_letters.sql");
const DISCARD_MATCHING: &str = include_str!("../../sql/discard_matching.sql");
const REDRIVE_DEAD_LETTERS: &str = include_str!("../../sql/redrive_dead_letters.sql");

/// Letters that one page of a list looks at, so that a rare filter does not read them all in one statement.
const LOOKED_AT: i64 = 2_000;

/// Redrives of one task that are shown: more than any task has unless something loops.
const SHOWN: i64 = 1_000;

/// Which letters: a JSON object that the database reads, the same from every door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// `fencepost.read_letter_filter` says what may stand in it.
    pub filter: Vec<u8>,
    /// Whether it may take every letter there is.
    pub all: bool,
}

/// Where a page of a list begins: behind the letter that died then.
pub type Position = (DateTime<Utc>, TaskId);

/// One line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The task that died.
    pub id: TaskId,
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// What the worker must know how to do.
    pub task_type: String,
    /// The only node that may run it.
    pub node: Option<String>,
    /// `failed`, `lost`, `unservable`, `schedule_to_start` or `unserved`.
    pub cause: String,
    /// What went wrong, in a word.
    pub error_class: String,
    /// Failed tries.
    pub attempt: i32,
    /// Deliveries whose worker or replica vanished.
    pub losses: i32,
    /// Whether its owner has taken the matter up.
    pub judged: bool,
    /// The task that was made of it.
    pub redriven_as: Option<TaskId>,
    /// RFC 3339.
    pub enqueued_at: String,
    /// RFC 3339.
    pub dead_at: String,
}

/// Part of a list, the last to die first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// At most as many as were asked for; fewer, even none, do not mean that there are no more.
    pub letters: Vec<Listed>,
    /// Where the next page begins; none at the end.
    pub before: Option<Position>,
}

/// Letters of one route that nobody has redriven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Tenant.
    pub namespace: String,
    /// Pool of workers.
    pub task_queue: String,
    /// Letters that were looked at, the newest ones.
    pub looked_at: i64,
    /// Those of them that nobody has redriven.
    pub letters: i64,
}

/// Counts letters that nobody has redriven among the newest so many of each route.
pub async fn count_by_route(
    client: &Client,
    looked_at: i64,
    routes: i32,
) -> Result<Vec<Counted>, Error> {
    let statement = client.prepare_cached(COUNT_LETTERS).await?;
    let rows = client.query(&statement, &[&looked_at, &routes]).await?;
    let counted = rows.iter().map(|row| {
        Ok(Counted {
            namespace: row.try_get("namespace")?,
            task_queue: row.try_get("task_queue")?,
            looked_at: row.try_get("looked_at")?,
            letters: row.try_get("letters")?,
        })
    });
    counted.collect()
}

/// Lists letters behind `before`, at most `limit`. The work of a page is bounded: it ends early where the filter
/// matches little.
pub async fn list(
    client: &Client,
    filter: &[u8],
    before: Option<Position>,
    limit: u32,
) -> Result<Page, Error> {
    let statement = client.prepare_cached(LIST_DEAD_LETTERS).await?;
    let (died, id) = before.unwrap_or((LAST_DAY, i64::MAX));
    let limit = i64::from(limit);
    let rows = client
        .query(&statement, &[&filter, &died, &id, &LOOKED_AT, &limit])
        .await?;
    let mut page = Page::default();
    let mut last = None;
    for row in &rows {
        let looked_at: i64 = row.try_get("looked_at")?;
        page.before = match looked_at {
            LOOKED_AT => Some((row.try_get("last_died")?, row.try_get("last_id")?)),
            _ => None,
        };
        if let Some(id) = row.try_get::<_, Option<TaskId>>("id")? {
            last = Some((row.try_get("died")?, id));
            page.letters.push(listed(row, id)?);
        }
    }
    // A full page goes on after its own last letter, wherever the look ended.
    if i64::try_from(page.letters.len()).is_ok_and(|found| found == limit) {
        page.before = last;
    }
    Ok(page)
}

/// Later than any time in the tables: the year 9999, which RFC 3339 ends with.
const LAST_DAY: DateTime<Utc> = match DateTime::from_timestamp(253_370_764_800, 0) {
    Some(day) => day,
    None => DateTime::<Utc>::UNIX_EPOCH,
};

fn listed(row: &Row, id: TaskId) -> Result<Listed, Error> {
    Ok(Listed {
        id,
        namespace: row.try_get("namespace")?,
        task_queue: row.try_get("task_queue")?,
        task_type: row.try_get("task_type")?,
        node: row.try_get("node")?,
        cause: row.try_get("cause")?,
        error_class: row.try_get("error_class")?,
        attempt: row.try_get("attempt")?,
        losses: row.try_get("losses")?,
        judged: row.try_get("judged")?,
        redriven_as: row.try_get("redriven_as")?,
        enqueued_at: row.try_get("enqueued_at")?,
        dead_at: row.try_get("dead_at")?,
    })
}

/// One of the tasks that a task was redriven as, itself included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redriven {
    /// The task.
    pub id: TaskId,
    /// `unfinished`, `done`, `failed`, `cancelled`, or `unknown` where it has left history.
    pub state: String,
    /// RFC 3339, where it died and its letter is there.
    pub dead_at: Option<String>,
}

/// All of one dead letter.
#[derive(Clone, PartialEq, Eq)]
pub struct Letter {
    /// As in a list.
    pub listed: Listed,
    /// The task that it is a redrive of, else its own.
    pub origin: TaskId,
    /// What went wrong at last.
    pub error_message: Option<String>,
    /// Of the delivery that ended it.
    pub epoch: i32,
    /// Of the delivery that ended it.
    pub fence: i32,
    /// 0 (first) to 3.
    pub priority: i16,
    /// RFC 3339, when its owner's webhook took it.
    pub told_at: Option<String>,
    /// Why telling its owner was given up.
    pub tell_error: Option<String>,
    /// Whether its owner is yet to be told.
    pub telling: bool,
    /// Its group of tasks.
    pub workflow: Option<(i64, i64, i32)>,
    /// Tasks with the same key run one at a time.
    pub concurrency_key: Option<String>,
    /// A JSON object of strings.
    pub labels: Option<String>,
    /// Of the payload.
    pub content_type: String,
    /// Of the payload.
    pub payload_bytes: i32,
    /// Where it was asked for.
    pub payload: Option<Vec<u8>>,
    /// Every failed or lost delivery, the first at first.
    pub failures: Vec<Failed>,
    /// Every task that it was redriven as, or is a redrive of, and itself; the first at first.
    pub chain: Vec<Redriven>,
}

/// Payload and labels belong to the application and stay out of logs.
impl std::fmt::Debug for Letter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Letter")
            .field("listed", &self.listed)
            .field("payload_bytes", &self.payload_bytes)
            .finish_non_exhaustive()
    }
}

impl Letter {
    /// The nodes that it was lost on, each once: deliveries whose worker or replica vanished.
    #[must_use]
    pub fn lost_on(&self) -> Vec<String> {
        let lost = ["retry_at_once", "not_accepted", "re_arm"];
        let nodes = self
            .failures
            .iter()
            .filter(|failed| lost.contains(&failed.how.as_str()))
            .filter_map(|failed| failed.node.clone());
        let mut nodes: Vec<String> = nodes.collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// Reads one letter with its history.
pub async fn read(client: &Client, id: TaskId, payload: bool) -> Result<Option<Letter>, Error> {
    let statement = client.prepare_cached(READ_DEAD_LETTER).await?;
    let Some(row) = client.query_opt(&statement, &[&id, &payload]).await? else {
        return Ok(None);
    };
    let origin: TaskId = row.try_get("origin")?;
    let failures = history::failures(client, id).await?;
    let statement = client.prepare_cached(LIST_REDRIVEN).await?;
    let chain = client.query(&statement, &[&origin, &SHOWN]).await?;
    let workflow: Option<i64> = row.try_get("workflow_id")?;
    let (run, ordinal): (Option<i64>, Option<i32>) =
        (row.try_get("run_id")?, row.try_get("ordinal")?);
    Ok(Some(Letter {
        listed: listed(&row, id)?,
        origin,
        error_message: row.try_get("error_message")?,
        epoch: row.try_get("epoch")?,
        fence: row.try_get("fence")?,
        priority: row.try_get("priority")?,
        told_at: row.try_get("told_at")?,
        tell_error: row.try_get("tell_error")?,
        telling: row.try_get("telling")?,
        workflow: workflow
            .zip(run)
            .zip(ordinal)
            .map(|((workflow, run), ordinal)| (workflow, run, ordinal)),
        concurrency_key: row.try_get("concurrency_key")?,
        labels: row.try_get("labels")?,
        content_type: row.try_get("content_type")?,
        payload_bytes: row.try_get("payload_bytes")?,
        payload: row.try_get("payload")?,
        failures,
        chain: chain
            .iter()
            .map(|row| {
                Ok(Redriven {
                    id: row.try_get("task_id")?,
                    state: row.try_get("state")?,
                    dead_at: row.try_get("dead_at")?,
                })
            })
            .collect::<Result<_, Error>>()?,
    }))
}

/// How many letters a filter takes.
pub async fn count(client: &Client, choice: &Choice) -> Result<i64, Error> {
    let statement = client.prepare_cached(COUNT_DEAD_LETTERS).await?;
    let row = client
        .query_one(&statement, &[&choice.filter, &choice.all])
        .await?;
    Ok(row.try_get("letters")?)
}

/// Discards letters by their ids; answers how many were there.
pub async fn discard(client: &Client, ids: &[TaskId]) -> Result<usize, Error> {
    let statement = client.prepare_cached(DISCARD_DEAD_LETTERS).await?;
    Ok(client.query(&statement, &[&ids]).await?.len())
}

/// Where a discard by filter goes on: above this id, of the letters that had died by then.
pub type Resume = (TaskId, DateTime<Utc>);

/// Discards the next letters that a filter takes, at most `batch`. Answers how many, and where to go on, if at all.
pub async fn discard_matching(
    client: &Client,
    choice: &Choice,
    from: Option<Resume>,
    batch: i32,
) -> Result<(i64, Option<Resume>), Error> {
    let statement = client.prepare_cached(DISCARD_MATCHING).await?;
    let (after, until) = (from.map_or(0, |from| from.0), from.map(|from| from.1));
    let row = client
        .query_one(
            &statement,
            &[&choice.filter, &choice.all, &after, &until, &batch],
        )
        .await?;
    let last: Option<TaskId> = row.try_get("last_id")?;
    let bound: DateTime<Utc> = row.try_get("bound")?;
    Ok((row.try_get("discarded")?, last.map(|last| (last, bound))))
}

/// What a redrive of one letter came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The letter.
    pub id: TaskId,
    /// The new task.
    pub task: Option<TaskId>,
    /// Why there is none: `not_found`, `already_redriven`, `judged`, `workflow_is_over` or `queue_not_declared`.
    pub refused: Option<String>,
}

/// Redrives letters by their ids, all that can be in one transaction.
pub async fn redrive(
    client: &Client,
    ids: &[TaskId],
    forced: bool,
    clear_pin: bool,
) -> Result<Vec<Answer>, Error> {
    let statement = client.prepare_cached(REDRIVE_DEAD_LETTERS).await?;
    let rows = client
        .query(&statement, &[&ids, &forced, &clear_pin])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Answer {
                id: row.try_get("letter_id")?,
                task: row.try_get("task_id")?,
                refused: row.try_get("refused")?,
            })
        })
        .collect()
}
