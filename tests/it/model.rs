//! Random commands against PostgreSQL and against a small model of the rules: the answers and the rows agree.

use std::collections::BTreeSet;

use fencepost::domain::id::{DispatcherId, NOBODY, TaskId, Token};
use fencepost::domain::settlement::Move;
use fencepost::store::cancel;
use fencepost::store::claim::{self, LaneRequest};
use fencepost::store::settle::{self, Goes, Return, Verdict};
use fencepost::store::{Client, upkeep};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::Queue;
use crate::support::queue::{
    CANCELLED, DEADLINES, DONE, FAILED, MAX_LOSSES, assert_sound, failure, how, success,
    verdict_for,
};

/// A command; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Command {
    Enqueue,
    Claim {
        replica: usize,
        limit: i32,
    },
    Complete {
        token: usize,
    },
    /// A worker's own report.
    Report {
        token: usize,
        how: Move,
    },
    /// A move by a replica, which may not be the owner.
    MoveBy {
        replica: usize,
        token: usize,
        how: Move,
    },
    /// A move by a chore, of a task that nobody may have.
    MoveReady {
        task: usize,
        how: Move,
    },
    Cancel {
        task: usize,
    },
    Adopt {
        replica: usize,
        token: usize,
    },
    CompleteInSql {
        token: usize,
    },
    /// Replica dies, a new one takes its place, and the chores put back what it held.
    Die {
        replica: usize,
    },
}

fn any_move() -> impl Strategy<Value = Move> {
    proptest::sample::select(vec![
        Move::Retry,
        Move::TimeOut,
        Move::RetryAtOnce,
        Move::NotAccepted,
        Move::Snooze,
        Move::Release,
        Move::HandOver,
        Move::ReArm,
        Move::DeadLetter,
        Move::Unservable,
        Move::Expire,
    ])
}

fn command() -> impl Strategy<Value = Command> {
    let n = 0..64usize;
    let reported = proptest::sample::select(vec![Move::Retry, Move::Snooze, Move::DeadLetter]);
    let chore = proptest::sample::select(vec![Move::Retry, Move::DeadLetter, Move::Expire]);
    prop_oneof![
        2 => Just(Command::Enqueue),
        6 => (n.clone(), 1..3).prop_map(|(replica, limit)| Command::Claim { replica, limit }),
        3 => n.clone().prop_map(|token| Command::Complete { token }),
        4 => (n.clone(), reported).prop_map(|(token, how)| Command::Report { token, how }),
        6 => (n.clone(), n.clone(), any_move())
            .prop_map(|(replica, token, how)| Command::MoveBy { replica, token, how }),
        3 => (n.clone(), chore).prop_map(|(task, how)| Command::MoveReady { task, how }),
        2 => n.clone().prop_map(|task| Command::Cancel { task }),
        3 => (n.clone(), n.clone()).prop_map(|(replica, token)| Command::Adopt { replica, token }),
        2 => n.clone().prop_map(|token| Command::CompleteInSql { token }),
        1 => n.prop_map(|replica| Command::Die { replica }),
    ]
}

/// What the model knows of a task.
#[derive(Clone, Debug, PartialEq)]
struct Task {
    id: TaskId,
    owner: Option<DispatcherId>,
    attempt: i32,
    losses: i32,
    epoch: i32,
    fence: i32,
    cancel_requested: bool,
    /// State of the outcome, and the report that made it.
    ended: Option<(i16, Option<(i32, i32)>)>,
    /// (epoch, fence, worker's name is known) of each stored failure.
    failures: BTreeSet<(i32, i32)>,
}

impl Task {
    fn is_current(&self, token: Token) -> bool {
        self.ended.is_none() && (self.epoch, self.fence) == (token.epoch, token.fence)
    }

    /// The rules of a move that is not a success; None when its guard does not hold.
    fn give_back(&mut self, token: Token, owner: Option<DispatcherId>, how: Move) -> Option<Goes> {
        let owned = owner.is_none() || owner == self.owner.or(Some(NOBODY));
        if !self.is_current(token) || !owned {
            return None;
        }
        let (spends, cuts, loses) = match how {
            Move::Retry | Move::TimeOut | Move::DeadLetter => (1, 1, 0),
            Move::RetryAtOnce => (1, 1, 1),
            Move::NotAccepted => (0, 1, 1),
            Move::Snooze | Move::Unservable | Move::Expire => (0, 1, 0),
            Move::Release | Move::HandOver => (0, 0, 0),
            Move::ReArm => (0, 0, 1),
        };
        let told = owner.is_none().then_some((token.epoch, token.fence));
        if self.cancel_requested {
            self.ended = Some((CANCELLED, told));
            self.attempt += spends;
            return Some(Goes::Cancelled);
        }
        let lost = loses > 0 && self.losses + loses > MAX_LOSSES;
        let dead = lost || matches!(how, Move::DeadLetter | Move::Unservable | Move::Expire);
        if spends + loses > 0 || dead {
            self.failures.insert((token.epoch, token.fence));
        }
        self.attempt += spends;
        self.losses += loses;
        if dead {
            self.ended = Some((FAILED, told));
            return Some(Goes::Dead);
        }
        self.epoch += cuts;
        self.owner = None;
        Some(Goes::Ready)
    }

    fn complete(&mut self, token: Token) -> bool {
        let counts = self.ended.is_none() && self.epoch == token.epoch;
        if counts {
            let state = if self.cancel_requested {
                CANCELLED
            } else {
                DONE
            };
            self.ended = Some((state, Some((token.epoch, token.fence))));
        }
        counts
    }

    fn verdict(&self, token: Token, success: bool, owner: Option<DispatcherId>) -> Verdict {
        let matches = if success {
            self.ended.is_none() && self.epoch == token.epoch
        } else {
            self.is_current(token) && (owner.is_none() || owner == self.owner)
        };
        let told = (token.epoch, token.fence);
        let by_outcome = self.ended.is_some_and(|(state, by)| {
            by == Some(told) && (state == CANCELLED || (state == DONE) == success)
        });
        if matches {
            Verdict::Busy
        } else if by_outcome || (!success && self.failures.contains(&told)) {
            Verdict::Recorded
        } else {
            Verdict::Superseded
        }
    }
}

/// One run: its own route in the database that all runs share.
struct Run<'q> {
    queue: &'q Queue,
    client: Client,
    name: String,
    route: i32,
    replicas: Vec<DispatcherId>,
    tasks: Vec<Task>,
    tokens: Vec<Token>,
}

impl<'q> Run<'q> {
    async fn new(queue: &'q Queue, number: usize) -> Self {
        let client = queue.client().await;
        // Planning over all partitions would be most of the time.
        client
            .batch_execute("set plan_cache_mode = force_generic_plan")
            .await
            .unwrap();
        let mut run = Self {
            queue,
            client,
            name: format!("run {number}"),
            route: 0,
            replicas: vec![queue.join("a").await, queue.join("b").await],
            tasks: Vec::new(),
            tokens: Vec::new(),
        };
        run.enqueue().await;
        let id = run.tasks[0].id;
        let query = "select route_id from fencepost.task where id = $1";
        run.route = run.client.query_one(query, &[&id]).await.unwrap().get(0);
        run
    }

    fn replica(&self, number: usize) -> DispatcherId {
        self.replicas[number % self.replicas.len()]
    }

    /// A token that was given out, and its task.
    fn token(&mut self, number: usize) -> Option<(Token, &mut Task)> {
        let token = *self.tokens.get(number % self.tokens.len().max(1))?;
        let task = self.tasks.iter_mut().find(|task| task.id == token.id)?;
        Some((token, task))
    }

    async fn enqueue(&mut self) {
        let call = "select task_id from fencepost.enqueue($1, 't')";
        let row = self.client.query_one(call, &[&self.name]).await.unwrap();
        self.tasks.push(Task {
            id: row.get(0),
            owner: None,
            attempt: 0,
            losses: 0,
            epoch: 0,
            fence: 0,
            cancel_requested: false,
            ended: None,
            failures: BTreeSet::new(),
        });
    }

    async fn apply(&mut self, command: Command) -> Result<(), TestCaseError> {
        match command {
            Command::Enqueue => self.enqueue().await,
            Command::Claim { replica, limit } => self.claim(replica, limit).await?,
            Command::Complete { token } => self.complete(token).await?,
            Command::Report { token, how } => self.give_back(token, None, how).await?,
            Command::MoveBy {
                replica,
                token,
                how,
            } => {
                let owner = Some(self.replica(replica));
                self.give_back(token, owner, how).await?;
            }
            Command::MoveReady { task, how } => self.move_ready(task, how).await?,
            Command::Cancel { task } => self.cancel(task).await?,
            Command::Adopt { replica, token } => self.adopt(replica, token).await?,
            Command::CompleteInSql { token } => self.complete_in_sql(token).await?,
            Command::Die { replica } => self.die(replica).await?,
        }
        self.compare().await
    }

    async fn claim(&mut self, replica: usize, limit: i32) -> Result<(), TestCaseError> {
        let dispatcher = self.replica(replica);
        let lane = LaneRequest {
            route: self.route,
            ..Queue::lane(1, limit)
        };
        let request = self.queue.request(vec![lane], vec![limit]);
        let tokens = self
            .queue
            .claim_for(&self.client, dispatcher, &request)
            .await;
        let ready = |task: &&mut Task| task.ended.is_none() && task.owner.is_none();
        let waiting = self.tasks.iter_mut().filter(ready).count();
        prop_assert_eq!(tokens.len(), waiting.min(usize::try_from(limit).unwrap()));
        for token in tokens {
            let task = self
                .tasks
                .iter_mut()
                .filter(ready)
                .find(|task| task.id == token.id);
            let task = task.ok_or_else(|| TestCaseError::fail("claimed what was not ready"))?;
            task.fence += 1;
            task.owner = Some(dispatcher);
            prop_assert_eq!((token.epoch, token.fence), (task.epoch, task.fence));
            self.tokens.push(token);
        }
        Ok(())
    }

    async fn complete(&mut self, token: usize) -> Result<(), TestCaseError> {
        let Some((token, task)) = self.token(token) else {
            return Ok(());
        };
        let (counts, told) = (task.complete(token), task.verdict(token, true, None));
        let done = settle::complete(&self.client, &[success(token)])
            .await
            .unwrap();
        prop_assert_eq!(!done.is_empty(), counts);
        prop_assert_eq!(verdict_for(&self.client, token, true, None).await, told);
        Ok(())
    }

    async fn give_back(
        &mut self,
        token: usize,
        owner: Option<DispatcherId>,
        how: Move,
    ) -> Result<(), TestCaseError> {
        let Some((token, task)) = self.token(token) else {
            return Ok(());
        };
        let expected = task.give_back(token, owner, how);
        let told = task.verdict(token, false, owner);
        let entry = Return {
            owner,
            ..failure(token, how)
        };
        let moved = settle::give_back(&self.client, &[entry], MAX_LOSSES)
            .await
            .unwrap();
        prop_assert_eq!(moved.first().map(|task| task.goes), expected);
        prop_assert_eq!(verdict_for(&self.client, token, false, owner).await, told);
        Ok(())
    }

    /// What the chores do to tasks that nobody has; one that somebody has stays as it is.
    async fn move_ready(&mut self, task: usize, how: Move) -> Result<(), TestCaseError> {
        let count = self.tasks.len();
        let task = &mut self.tasks[task % count];
        let token = Token {
            id: task.id,
            epoch: task.epoch,
            fence: task.fence,
        };
        let expected = task.give_back(token, Some(NOBODY), how);
        let entry = Return {
            owner: Some(NOBODY),
            ..failure(token, how)
        };
        let moved = settle::give_back(&self.client, &[entry], MAX_LOSSES)
            .await
            .unwrap();
        prop_assert_eq!(moved.first().map(|task| task.goes), expected);
        Ok(())
    }

    async fn cancel(&mut self, task: usize) -> Result<(), TestCaseError> {
        let count = self.tasks.len();
        let task = &mut self.tasks[task % count];
        let expected = match (&task.ended, task.owner) {
            (Some((DONE, _)), _) => "done",
            (Some((FAILED, _)), _) => "failed",
            (Some(_), _) => "cancelled",
            (None, Some(_)) => {
                task.cancel_requested = true;
                "requested"
            }
            (None, None) => {
                task.ended = Some((CANCELLED, None));
                "cancelled"
            }
        };
        let answers = cancel::cancel(&self.client, &[task.id], &how())
            .await
            .unwrap();
        prop_assert_eq!(answers[0].state.as_str(), expected);
        let owner = (expected == "requested").then_some(task.owner).flatten();
        prop_assert_eq!(answers[0].dispatcher, owner);
        Ok(())
    }

    async fn adopt(&mut self, replica: usize, token: usize) -> Result<(), TestCaseError> {
        let dispatcher = self.replica(replica);
        let Some((token, task)) = self.token(token) else {
            return Ok(());
        };
        // Its own rows have their end on the way already.
        let taken = task.is_current(token) && task.owner != Some(dispatcher);
        if taken {
            task.owner = Some(dispatcher);
        }
        let marked = task.cancel_requested;
        let adopted = claim::adopt(&self.client, dispatcher, 77, &[], &[token], DEADLINES)
            .await
            .unwrap();
        let expected = taken.then_some((token, marked));
        prop_assert_eq!(
            adopted
                .first()
                .map(|one| (one.claim.token, one.cancel_requested)),
            expected
        );
        Ok(())
    }

    async fn complete_in_sql(&mut self, token: usize) -> Result<(), TestCaseError> {
        let Some((token, task)) = self.token(token) else {
            return Ok(());
        };
        let epoch_holds = task.ended.is_none() && task.epoch == token.epoch;
        let repeat = task.ended == Some((DONE, Some((token.epoch, token.fence))));
        let expected = if epoch_holds && task.cancel_requested {
            Some("FP013")
        } else if epoch_holds || repeat {
            task.complete(token);
            None
        } else {
            Some("FP012")
        };
        let call = format!("select fencepost.complete('{token}')");
        let answer = self.client.execute(&call, &[]).await;
        let code = answer
            .err()
            .and_then(|error| error.code().map(|code| code.code().to_owned()));
        prop_assert_eq!(code.as_deref(), expected);
        Ok(())
    }

    async fn die(&mut self, replica: usize) -> Result<(), TestCaseError> {
        let (place, dead) = (replica % self.replicas.len(), self.replica(replica));
        self.queue.kill(dead).await;
        self.replicas[place] = self.queue.join("next").await;
        let orphans = upkeep::find_orphans(&self.client, 1000).await.unwrap();
        let held: BTreeSet<TaskId> = self
            .tasks
            .iter()
            .filter(|task| task.ended.is_none() && task.owner == Some(dead))
            .map(|task| task.id)
            .collect();
        let found: BTreeSet<TaskId> = orphans
            .iter()
            .filter(|orphan| orphan.owner == dead)
            .map(|orphan| orphan.token.id)
            .collect();
        prop_assert_eq!(&held, &found);
        for task in self.tasks.iter_mut().filter(|task| held.contains(&task.id)) {
            let token = Token {
                id: task.id,
                epoch: task.epoch,
                fence: task.fence,
            };
            let expected = task.give_back(token, Some(dead), Move::ReArm);
            let entry = Return {
                owner: Some(dead),
                ..failure(token, Move::ReArm)
            };
            let moved = settle::give_back(&self.client, &[entry], MAX_LOSSES)
                .await
                .unwrap();
            prop_assert_eq!(moved.first().map(|task| task.goes), expected);
        }
        Ok(())
    }

    /// The rows are what the model says, and the tables are sound.
    async fn compare(&self) -> Result<(), TestCaseError> {
        let query = "
            select
                task.id, live.dispatcher, coalesce(live.attempt, outcome.attempt) as attempt,
                live.losses, live.epoch, live.fence, live.cancel_requested,
                live.id is null as ended, outcome.state, outcome.epoch as told_epoch, outcome.fence as told_fence,
                (select count(*) from fencepost.failure where failure.id = task.id) as failures
            from fencepost.task
            left join fencepost.live on live.id = task.id
            left join fencepost.outcome on outcome.id = task.id
            where task.route_id = $1
            order by task.id";
        let query = self.client.prepare_cached(query).await.unwrap();
        let rows = self.client.query(&query, &[&self.route]).await.unwrap();
        prop_assert_eq!(rows.len(), self.tasks.len());
        for (row, task) in rows.iter().zip(&self.tasks) {
            prop_assert_eq!(row.get::<_, TaskId>("id"), task.id);
            prop_assert_eq!(row.get::<_, i32>("attempt"), task.attempt, "{:?}", task);
            let told = row
                .get::<_, Option<i32>>("told_epoch")
                .zip(row.get("told_fence"));
            let ended = row
                .get::<_, Option<i16>>("state")
                .map(|state| (state, told));
            prop_assert_eq!(ended, task.ended, "{:?}", task);
            prop_assert_eq!(row.get::<_, bool>("ended"), task.ended.is_some());
            let distinct = i64::try_from(task.failures.len()).unwrap();
            prop_assert!(row.get::<_, i64>("failures") >= distinct, "{:?}", task);
            if task.ended.is_none() {
                let live: [Option<i32>; 3] =
                    [row.get("losses"), row.get("epoch"), row.get("fence")];
                prop_assert_eq!(
                    live,
                    [task.losses, task.epoch, task.fence].map(Some),
                    "{:?}",
                    task
                );
                prop_assert_eq!(
                    row.get::<_, Option<i64>>("dispatcher"),
                    task.owner,
                    "{:?}",
                    task
                );
                prop_assert_eq!(
                    row.get::<_, bool>("cancel_requested"),
                    task.cancel_requested
                );
            }
        }
        Ok(())
    }
}

/// Looking through all partitions after each command would be most of the time.
const FEW_PARTITIONS: &str = "
    do $$
    declare child regclass;
    begin
        for child in
            select inhrelid from pg_inherits
            where
                inhparent::regclass in ('fencepost.task', 'fencepost.outcome', 'fencepost.failure')
                and right(inhrelid::regclass::text, 8)::date > (now() at time zone 'UTC')::date + 1
        loop
            execute 'drop table ' || child;
        end loop;
        update fencepost.horizon
        set end_ms = fencepost.id_ms(date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' + interval '2 days');
    end
    $$";

#[test]
fn random_commands_leave_what_the_rules_say() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queue = runtime.block_on(async {
        let queue = Queue::new().await;
        queue
            .client()
            .await
            .batch_execute(FEW_PARTITIONS)
            .await
            .unwrap();
        queue
    });
    let mut runner = TestRunner::new(Config {
        cases: 32,
        // Each step of shrinking is a whole run.
        max_shrink_iters: 60,
        failure_persistence: None,
        ..Config::default()
    });
    let runs = std::cell::Cell::new(0);
    let tested = runner.run(&proptest::collection::vec(command(), 30..50), |commands| {
        runtime.block_on(async {
            runs.set(runs.get() + 1);
            let mut run = Run::new(&queue, runs.get()).await;
            for command in commands {
                run.apply(command).await?;
                assert_sound(&run.client).await;
            }
            Ok(())
        })
    });
    tested.unwrap_or_else(|failure| panic!("{failure}"));
}
