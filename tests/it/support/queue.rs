use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::GenericClient;
use fencepost::domain::id::{DispatcherId, TaskId, Token};
use fencepost::domain::outcome::Failure;
use fencepost::domain::settlement::Move;
use fencepost::store::cancel::{self, CancelAnswer, How};
use fencepost::store::claim::{self, ClaimRequest, Deadlines, LaneRequest};
use fencepost::store::settle::{Completion, Missed, Return, Verdict};
use fencepost::store::{Client, Pool, dispatchers, settle};

use super::{TestDb, eventually};

/// What claims are made with here.
pub const DEADLINES: Deadlines = Deadlines {
    run_timeout: Duration::from_secs(60),
    allowance: Duration::from_secs(10),
};
/// As many losses as the server's default allows.
pub const MAX_LOSSES: i32 = 5;

/// The database of one test and a replica in it, spoken to through the store alone.
pub struct Queue {
    // Dropped first: its connections end before the database goes.
    pub pool: Pool,
    pub dispatcher: DispatcherId,
    _db: TestDb,
    sweeps: AtomicI64,
}

/// A row of `live`.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRow {
    pub state: i16,
    pub hold: i16,
    pub attempt: i32,
    pub losses: i32,
    pub epoch: i32,
    pub fence: i32,
    pub dispatcher: Option<DispatcherId>,
    pub sweep: Option<i64>,
    pub visible_after: DateTime<Utc>,
    pub claimed_at: Option<DateTime<Utc>>,
    pub deadline: Option<DateTime<Utc>>,
    pub cancel_requested: bool,
}

/// A row of `outcome`.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeRow {
    pub state: i16,
    pub attempt: i32,
    /// Epoch and fence, where a worker's report ended the task.
    pub told: Option<(i32, i32)>,
    pub worker: Option<String>,
    pub error: (Option<String>, Option<String>),
    pub result: Option<(Vec<u8>, String)>,
}

pub const DONE: i16 = 1;
pub const FAILED: i16 = 2;
pub const CANCELLED: i16 = 3;

impl Queue {
    pub async fn new() -> Self {
        let db = TestDb::new().await;
        let pool = db.pool();
        let client = pool.get().await.unwrap();
        let dispatcher = dispatchers::register(&client, "first", "1").await.unwrap();
        Self {
            pool,
            dispatcher,
            _db: db,
            sweeps: AtomicI64::new(1),
        }
    }

    pub async fn client(&self) -> Client {
        self.pool.get().await.unwrap()
    }

    /// Another replica.
    pub async fn join(&self, name: &str) -> DispatcherId {
        dispatchers::register(&self.client().await, name, "1")
            .await
            .unwrap()
    }

    /// Declares a replica dead.
    pub async fn kill(&self, dispatcher: DispatcherId) {
        let client = self.client().await;
        let all = dispatchers::read(&client).await.unwrap();
        let beat = all.iter().find(|one| one.id == dispatcher).unwrap().beat;
        let dead = dispatchers::mark_dead(&client, &[(dispatcher, beat)]).await;
        assert_eq!(dead.unwrap(), [dispatcher]);
    }

    pub async fn enqueue(&self, tasks: i32) -> Vec<TaskId> {
        let rows = self
            .client()
            .await
            .query(
                "select task_id from fencepost.enqueue_many(
                    array['q'], array['t'], array_fill('null'::bytea, array[$1::int])
                )",
                &[&tasks],
            )
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// One task with these further arguments, such as `priority => 2`.
    pub async fn enqueue_with(&self, arguments: &str) -> TaskId {
        let call = format!("select task_id from fencepost.enqueue('q', 't', {arguments})");
        let row = self.client().await.query_one(&call, &[]).await;
        row.unwrap().get(0)
    }

    /// A lane of the first route, from its very beginning.
    pub fn lane(priority: i16, limit: i32) -> LaneRequest {
        LaneRequest {
            route: 1,
            priority,
            limit,
            ..LaneRequest::default()
        }
    }

    pub fn request(&self, lanes: Vec<LaneRequest>, shares: Vec<i32>) -> ClaimRequest {
        ClaimRequest {
            sweep: self.sweeps.fetch_add(1, Ordering::Relaxed),
            lanes,
            shares,
            ..ClaimRequest::default()
        }
    }

    /// Claims what this request asks for, for this queue's own replica; tokens sorted.
    pub async fn claim_lanes(
        &self,
        client: &impl GenericClient,
        lanes: Vec<LaneRequest>,
        shares: Vec<i32>,
    ) -> Vec<Token> {
        let request = self.request(lanes, shares);
        self.claim_for(client, self.dispatcher, &request).await
    }

    pub async fn claim_for(
        &self,
        client: &impl GenericClient,
        dispatcher: DispatcherId,
        request: &ClaimRequest,
    ) -> Vec<Token> {
        let claimed = claim::claim(client, dispatcher, request, DEADLINES).await;
        let claims = claimed.unwrap().claims;
        let mut tokens: Vec<Token> = claims.iter().map(|claim| claim.token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// Claims up to so many tasks of priority 1.
    pub async fn claim(&self, limit: i32) -> Vec<Token> {
        let client = self.client().await;
        self.claim_lanes(&client, vec![Self::lane(1, limit)], vec![limit])
            .await
    }

    /// One task, enqueued and claimed.
    pub async fn one(&self) -> Token {
        self.enqueue(1).await;
        let tokens = self.claim(1).await;
        assert_eq!(tokens.len(), 1);
        tokens[0]
    }

    /// One task with this concurrency key, enqueued and claimed.
    pub async fn one_with_key(&self, key: &str) -> Token {
        let id = self
            .enqueue_with(&format!("concurrency_key => '{key}'"))
            .await;
        let token = self.again().await;
        assert_eq!(token.id, id);
        token
    }

    /// The next delivery of the only task that is due.
    pub async fn again(&self) -> Token {
        let tokens = self.claim(1).await;
        assert_eq!(tokens.len(), 1);
        tokens[0]
    }

    /// One move of one task by its owner; empty when the row did not match.
    pub async fn move_by_owner(&self, token: Token, how: Move) -> Vec<settle::Goes> {
        self.give_back(Return {
            owner: Some(self.dispatcher),
            ..failure(token, how)
        })
        .await
    }

    pub async fn give_back(&self, entry: Return) -> Vec<settle::Goes> {
        let client = self.client().await;
        let moved = settle::give_back(&client, &[entry], MAX_LOSSES)
            .await
            .unwrap();
        moved.iter().map(|task| task.goes).collect()
    }

    pub async fn complete(&self, token: Token) -> bool {
        let client = self.client().await;
        !settle::complete(&client, &[success(token)])
            .await
            .unwrap()
            .is_empty()
    }

    pub async fn cancel(&self, id: TaskId) -> Option<CancelAnswer> {
        let client = self.client().await;
        let answers = cancel::cancel(&client, &[id], &how()).await;
        answers.unwrap().pop()
    }

    pub async fn verdict(&self, token: Token, success: bool) -> Verdict {
        verdict(&self.client().await, token, success).await
    }

    pub async fn live(&self, id: TaskId) -> Option<LiveRow> {
        let client = self.client().await;
        let query = "select * from fencepost.live where id = $1";
        let row = client.query_opt(query, &[&id]).await.unwrap()?;
        Some(LiveRow {
            state: row.get("state"),
            hold: row.get("hold"),
            attempt: row.get("attempt"),
            losses: row.get("losses"),
            epoch: row.get("epoch"),
            fence: row.get("fence"),
            dispatcher: row.get("dispatcher"),
            sweep: row.get("sweep"),
            visible_after: row.get("visible_after"),
            claimed_at: row.get("claimed_at"),
            deadline: row.get("deadline"),
            cancel_requested: row.get("cancel_requested"),
        })
    }

    /// The row of a task that is there.
    pub async fn row(&self, id: TaskId) -> LiveRow {
        self.live(id).await.unwrap()
    }

    pub async fn outcome(&self, id: TaskId) -> Option<OutcomeRow> {
        let client = self.client().await;
        let query = "select * from fencepost.outcome where id = $1";
        let row = client.query_opt(query, &[&id]).await.unwrap()?;
        let (epoch, fence): (Option<i32>, Option<i32>) = (row.get("epoch"), row.get("fence"));
        let (result, kind): (Option<Vec<u8>>, Option<String>) =
            (row.get("result"), row.get("result_type"));
        assert_eq!(result.is_some(), kind.is_some());
        Some(OutcomeRow {
            state: row.get("state"),
            attempt: row.get("attempt"),
            told: epoch.zip(fence),
            worker: row.get("worker"),
            error: (row.get("error_class"), row.get("error_message")),
            result: result.zip(kind),
        })
    }

    /// (attempt from 1, fence, move, class, node) of each failure, oldest delivery first.
    pub async fn failures(&self, id: TaskId) -> Vec<(i32, i32, String, String, Option<String>)> {
        let client = self.client().await;
        let query = "select * from fencepost.failure where id = $1 order by fence, attempt";
        let rows = client.query(query, &[&id]).await.unwrap();
        rows.iter()
            .map(|row| {
                (
                    row.get("attempt"),
                    row.get("fence"),
                    row.get("move"),
                    row.get("error_class"),
                    row.get("node"),
                )
            })
            .collect()
    }

    /// Runs a statement of the test's own, such as one that sets a hold bit.
    pub async fn execute(&self, statement: &str) -> u64 {
        self.client().await.execute(statement, &[]).await.unwrap()
    }

    pub async fn number(&self, query: &str) -> i64 {
        let row = self.client().await.query_one(query, &[]).await;
        row.unwrap().get(0)
    }

    /// Lets a statement run into a lock of an open transaction: starts it, waits until the server says that it
    /// waits, ends the transaction, and returns what the statement answers then.
    pub async fn waits<T>(
        &self,
        backend: i32,
        statement: impl Future<Output = T>,
        end: impl Future<Output = Result<(), tokio_postgres::Error>>,
    ) -> T {
        tokio::pin!(statement);
        tokio::select! {
            _ = &mut statement => panic!("the statement did not wait"),
            () = self.blocked(backend) => {}
        }
        end.await.unwrap();
        statement.await
    }

    /// Returns once this backend waits for another one's lock.
    pub async fn blocked(&self, backend: i32) {
        let observer = self.client().await;
        eventually(Duration::from_secs(20), async || {
            let query = "select cardinality(pg_blocking_pids($1)) > 0";
            let row = observer.query_one(query, &[&backend]).await.unwrap();
            row.get::<_, bool>(0).then_some(())
        })
        .await;
    }

    /// Holds what must be true of the tables whenever no transaction is open.
    pub async fn assert_sound(&self) {
        assert_sound(&self.client().await).await;
    }
}

/// How tests cancel.
pub fn how() -> How {
    How {
        grace: Duration::from_secs(30),
        reason: "no longer wanted".into(),
        only: None,
    }
}

/// The backend of a connection, to look for in the lock table.
pub async fn backend(client: &impl GenericClient) -> i32 {
    let row = client.query_one("select pg_backend_pid()", &[]).await;
    row.unwrap().get(0)
}

pub async fn verdict(client: &impl GenericClient, token: Token, success: bool) -> Verdict {
    verdict_for(client, token, success, None).await
}

pub async fn verdict_for(
    client: &impl GenericClient,
    token: Token,
    success: bool,
    owner: Option<DispatcherId>,
) -> Verdict {
    let missed = Missed {
        token,
        success,
        worker: Some("w".into()),
        owner,
    };
    let verdicts = settle::look_again(client, &[missed]).await.unwrap();
    assert_eq!(verdicts.len(), 1);
    verdicts[0].verdict
}

pub fn success(token: Token) -> Completion {
    Completion {
        token,
        result: None,
        worker: Some("w".into()),
    }
}

/// A worker's own report, or the owner's once `owner` is set; due again at once, in its old place.
pub fn failure(token: Token, how: Move) -> Return {
    Return {
        token,
        owner: None,
        how,
        delay: None,
        error: Some(Failure::new("oops", "it broke")),
        worker: Some("w".into()),
        node: Some("n".into()),
    }
}

/// Every task is in live or in outcome and never in both; ready rows belong to nobody and claimed rows to somebody;
/// a failed task has its dead letter; no key has more tasks let go than its limit.
pub async fn assert_sound(client: &impl GenericClient) {
    let query = "
        select format('task %s is in both tables or in neither', task.id)
        from fencepost.task
        left join fencepost.live on live.id = task.id
        left join fencepost.outcome on outcome.id = task.id
        where (live.id is null) = (outcome.id is null)
        union all
        select format('%s has no body', lost.id)
        from (select id from fencepost.live union select id from fencepost.outcome) as lost
        where not exists (select from fencepost.task where task.id = lost.id)
        union all
        select format('failed task %s and its dead letter are not a pair', coalesce(failed.id, dead_letter.id))
        from (select id from fencepost.outcome where state = 2) as failed
        full join fencepost.dead_letter on dead_letter.id = failed.id
        where failed.id is null or dead_letter.id is null
        union all
        select format('claimed row %s lacks an owner', live.id)
        from fencepost.live
        where state = 1 and (dispatcher is null or sweep is null or claimed_at is null or fence < 1)
        union all
        select format('ready row %s has an owner', live.id)
        from fencepost.live
        where
            state = 0
            and (num_nonnulls(dispatcher, sweep, claimed_at, deadline) > 0 or cancel_requested)
        union all
        select format('row %s has an impossible counter', live.id)
        from fencepost.live
        where state not in (0, 1) or least(attempt, losses, epoch, fence) < 0 or attempt > epoch
        union all
        select format('key %s has more tasks let go than its limit', line.key_hash)
        from fencepost.live as line
        inner join fencepost.route on route.route_id = line.route_id
        where line.key_hash is not null and line.hold & 2 = 0
        group by line.key_hash
        having
            count(*) > max(route.key_limit)
            - (select count(*) from fencepost.stopped_key as stop where stop.key_hash = line.key_hash)
        union all
        select format('%s stops a key and is no dead letter, or is redriven', stop.letter_id)
        from fencepost.stopped_key as stop
        left join fencepost.dead_letter as letter on letter.id = stop.letter_id
        where letter.id is null or letter.redriven_as is not null
        union all
        select format('%s has two failures of one delivery', repeated.id)
        from fencepost.failure as repeated
        -- an adopted delivery can lose its replica again
        where move <> 're_arm'
        group by repeated.id, repeated.epoch, repeated.fence, repeated.move
        having count(*) > 1";
    let query = client.prepare_cached(query).await.unwrap();
    let rows = client.query(&query, &[]).await.unwrap();
    let faults: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(faults, Vec::<String>::new());
}

/// Milliseconds from one time to a later one.
pub fn millis(later: Option<DateTime<Utc>>, earlier: Option<DateTime<Utc>>) -> i64 {
    (later.unwrap() - earlier.unwrap()).num_milliseconds()
}
