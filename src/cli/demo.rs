//! `fencepost demo`: the product at work, with two of its processes killed half-way.
//!
//! Reading order: here is the play; `cast` has who plays in it, `worker` what the workers do, `watch` what is seen
//! meanwhile, `summary` how the end is told. What it all runs on, and how the end is judged, is the `stage` beside it.

mod cast;
mod summary;
mod watch;
pub mod worker;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::EXIT_INTERRUPTED;
use super::output;
use super::signals::Signals;
use super::stage::evidence;
use crate::store::demo::{Stand, State, find_states, read_times};
use crate::store::enqueue::{NewTask, enqueue};
use crate::store::{self, Pool};
use cast::Cast;
use summary::{Speed, Summary};
use watch::{Display, Tally};
use worker::{Kind, QUEUE};

/// Tasks of one transaction.
const BATCH: usize = 1000;

/// Between two looks at the tasks, at least.
const LOOK: Duration = Duration::from_millis(100);

/// A look may cost this part of our time at most, however many tasks there are.
const LOOK_SHARE: u32 = 4;

/// For one statement.
const DATABASE_DEADLINE: Duration = Duration::from_secs(30);

/// A short first wait between attempts.
const OPTIONS: &[u8] = br#"{"backoff_base_ms": 100}"#;

/// See it work: a private PostgreSQL, replicas and workers, two of them killed half-way.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Tasks to enqueue, of three types: one succeeds, one fails twice first, one always fails
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(3..=1_000_000))]
    pub tasks: u32,
    /// Replicas to start
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub replicas: u16,
    /// Workers to start
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Print the summary as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Use this migrated database, in a namespace of its own, instead of a private server
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

/// Plays, then ends whatever it has started: also after a signal or a failure.
///
/// Answers 1 when tasks were lost, counted twice or left at the deadline, and 130 after a signal.
///
/// # Errors
/// What keeps the demo from coming to its end: no PostgreSQL, or a process that ends by itself.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let mut signals = Signals::listen()?;
    let mut display = Display::new(u64::from(args.tasks), args.json);
    let began = Instant::now();
    let mut cast = Cast::new(&args, began)?;
    let played = tokio::select! {
        played = play(&args, &mut cast, &mut display) => played.map(Some),
        () = signals.next() => Ok(None),
    };
    display.clear();
    if played.is_err() {
        output::say(&cast.stage.logs());
    }
    tokio::select! {
        () = cast.stage.stop() => {}
        // Dropped, everything is killed.
        () = signals.next() => return Ok(EXIT_INTERRUPTED),
    }
    let Some(mut summary) = played? else {
        return Ok(EXIT_INTERRUPTED);
    };
    summary.took(began.elapsed());
    tell(&summary, args.json)?;
    Ok(u8::from(!summary.holds()))
}

async fn play(args: &Args, cast: &mut Cast, display: &mut Display) -> anyhow::Result<Summary> {
    display.say("starting PostgreSQL, replicas and workers");
    cast.raise(args).await?;
    display.say(&opening(args, cast));
    let mut producer = Producer {
        pool: Pool::new(&cast.stage.settings())?,
        namespace: cast.namespace.clone(),
        kinds: HashMap::new(),
    };
    run_tasks(args, cast, display, &mut producer).await?;
    // The answers to the last results are evidence too.
    cast.stage.stop_workers().await;
    judge(args, cast, &producer).await
}

fn opening(args: &Args, cast: &Cast) -> String {
    let timing = cast.timing;
    format!(
        "{} tasks in namespace {}, {} replicas, {} workers of {} slots\n\
         fencepost: a replica is dead after {} ms of silence (it beats every {} ms), a worker may be \
         away for {} ms",
        args.tasks,
        cast.namespace,
        args.replicas,
        args.workers,
        cast.slots,
        timing.dead_after_ms,
        timing.beat_ms,
        timing.reconnect_grace_ms,
    )
}

/// Enqueues, looks on, and strikes when half of the work is done; until all tasks have ended, or the deadline passes.
///
/// Half of the work, not of the ends: new tasks come before retries, so most ends fall into the last third.
async fn run_tasks(
    args: &Args,
    cast: &mut Cast,
    display: &mut Display,
    producer: &mut Producer,
) -> anyhow::Result<()> {
    let tasks = u64::from(args.tasks);
    let expected: u64 = Kind::in_turn(0)
        .take(args.tasks as usize)
        .map(Kind::tries)
        .sum();
    let deadline = Instant::now() + cast::deadline(args.tasks);
    let mut next_look = Instant::now() + LOOK;
    loop {
        let missing = args.tasks as usize - producer.kinds.len();
        if missing > 0 {
            producer.enqueue(missing.min(BATCH)).await?;
            if Instant::now() < next_look {
                continue;
            }
        }
        sleep_until(next_look).await;
        let began = Instant::now();
        let states = producer.look().await?;
        next_look = Instant::now() + LOOK.max(began.elapsed() * LOOK_SHARE);
        cast.stage.check()?;
        let tally = Tally::of(&states, &producer.kinds);
        let ended = tally.total().ended();
        display.show(&tally, &cast.stage.processes);
        if ended == tasks {
            return Ok(());
        }
        if cast.kills.is_empty() && tries(&states) * 2 >= expected {
            cast.strike(args).await?;
            for kill in &cast.kills {
                display.say(&format!("{kill} ({ended} of {tasks} tasks had ended)"));
            }
        }
        if Instant::now() >= deadline {
            output::say(&format!(
                "{} tasks have not ended in time\n{}\n{}",
                tasks - ended,
                tally.table(),
                cast.stage.logs()
            ));
            return Ok(());
        }
    }
}

/// Handlers' answers that were recorded so far, or close to it: a lost delivery counts too.
fn tries(states: &[State]) -> u64 {
    let of = |state: &State| {
        u64::try_from(state.attempt).unwrap_or(0) + u64::from(state.stand == Stand::Done)
    };
    states.iter().map(of).sum()
}

async fn judge(args: &Args, cast: &Cast, producer: &Producer) -> anyhow::Result<Summary> {
    let states = producer.look().await?;
    let runs = cast.stage.read_ledgers()?;
    let speed = Speed::measure(&producer.times().await?, &runs)?;
    let kills: Vec<i64> = cast.kills.iter().map(|kill| kill.at_us).collect();
    let evidence = evidence::judge(producer.kinds.keys().copied(), &states, runs, &kills);
    let counts = Tally::of(&states, &producer.kinds).total();
    let enqueued = producer.kinds.len() as u64;
    Ok(Summary::new(args, cast, enqueued, counts, &evidence, speed))
}

fn tell(summary: &Summary, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(summary);
    }
    output::line(&summary.table())?;
    output::line(&summary.kills())?;
    Ok(())
}

/// Who enqueues, and keeps a list of what it has enqueued.
struct Producer {
    pool: Pool,
    namespace: String,
    kinds: HashMap<i64, Kind>,
}

impl Producer {
    /// One transaction with so many more tasks, the types in turn.
    async fn enqueue(&mut self, count: usize) -> anyhow::Result<()> {
        let kinds: Vec<Kind> = Kind::in_turn(self.kinds.len()).take(count).collect();
        let tasks = kinds.iter().enumerate().map(|(n, kind)| NewTask {
            namespace: Some(self.namespace.clone()),
            task_queue: Some(QUEUE.to_owned()),
            task_type: Some(kind.name().to_owned()),
            payload: Some(format!("{{\"number\": {}}}", self.kinds.len() + n).into()),
            max_attempts: kind.max_attempts(),
            options: Some(OPTIONS.into()),
            ..NewTask::default()
        });
        let enqueued = enqueue(&self.pool, tasks.collect(), DATABASE_DEADLINE).await?;
        self.kinds
            .extend(enqueued.iter().map(|task| task.task_id).zip(kinds));
        Ok(())
    }

    /// None before the first task.
    fn ids(&self) -> Option<RangeInclusive<i64>> {
        let (first, last) = (self.kinds.keys().min()?, self.kinds.keys().max()?);
        Some(*first..=*last)
    }

    /// Where the tasks on the list stand now; what else lies in the range is somebody else's.
    async fn look(&self) -> Result<Vec<State>, store::Error> {
        let Some(ids) = self.ids() else {
            return Ok(Vec::new());
        };
        let work = self.pool.run(DATABASE_DEADLINE, move |client| {
            Box::pin(find_states(client, ids))
        });
        let mut states = work.await?;
        states.retain(|state| self.kinds.contains_key(&state.id));
        Ok(states)
    }

    async fn times(&self) -> Result<Vec<store::demo::Times>, store::Error> {
        let Some(ids) = self.ids() else {
            return Ok(Vec::new());
        };
        let work = self.pool.run(DATABASE_DEADLINE, move |client| {
            Box::pin(read_times(client, ids))
        });
        let mut times = work.await?;
        times.retain(|times| self.kinds.contains_key(&times.id));
        Ok(times)
    }
}
