//! `fencepost watch`: queues, rates and workers as they are now, again and again.

mod frame;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::database::Database;
use super::output::{self, Output};
use super::signals::Signals;
use super::{EXIT_INTERRUPTED, Usage};
use crate::api::page::{self, Window};
use crate::api::{self, QueueChoice, State};
use crate::store::totals::{self, Totals};
use frame::Frame;

/// Shorter times show no more: the server's statistics are written once a second.
const SHORTEST: Duration = Duration::from_millis(100);

/// From the top left; what was there before goes with the frame's last line.
const HOME: &str = "\x1b[H";
/// The cursor would jump about.
const HIDE: &str = "\x1b[?25l\x1b[2J";
const SHOW: &str = "\x1b[?25h";

/// What to watch.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Queues of this namespace
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
    /// Routes of this task queue
    #[arg(long, value_name = "Q")]
    queue: Option<String>,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: String,
    /// End after so many looks [default: at SIGINT]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// What stdout gets: a view that is drawn anew (a line a look, where stdout is no terminal), or a JSON object a look
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

/// Looks until a signal comes, or as often as was asked.
///
/// # Errors
/// [`crate::api::Error`] of a look that will always fail, [`Usage`] and what output may run into.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let interval = api::span("interval", &args.interval)?;
    if interval < SHORTEST {
        return Err(Usage(format!("--interval must be at least {SHORTEST:?}")).into());
    }
    let mut signals = Signals::listen()?;
    let session = args.database.open()?;
    let redraws = args.output == Output::Table && io::stdout().is_terminal();
    let _cursor = redraws.then(Cursor::hide).transpose()?;
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut left) = (None, args.count);
    loop {
        let looked = async {
            ticks.tick().await;
            look(&session.state, &args, before).await
        };
        let looked = tokio::select! {
            looked = looked => looked,
            () = signals.next() => return Ok(EXIT_INTERRUPTED),
        };
        match looked {
            Ok((frame, totals)) => {
                before = Some(totals);
                show(&frame, args.output, redraws)?;
            }
            Err(error) if error.is_refusal() => return Err(error.into()),
            // It comes back, or somebody stops us.
            Err(error) => output::say(&output::sentence(&error)),
        }
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return Ok(0);
        }
    }
}

/// Waiting tasks of a queue are counted up to here and estimated beyond: the next look comes in a second.
const COUNTED: i64 = 1_000;

async fn look(
    state: &State,
    args: &Args,
    before: Option<Totals>,
) -> Result<(Frame, Totals), api::Error> {
    let read = state.pool.run(state.limits.database, |client| {
        Box::pin(async move { totals::read(client).await })
    });
    let totals = read.await?;
    let rates = before.and_then(|before| totals.since(&before));
    let choice = QueueChoice {
        namespace: args.namespace.clone(),
        task_queue: args.queue.clone(),
        count_to: COUNTED,
    };
    // The first page: to read all of very many queues would cost more than there is to see.
    let queues = state.queues(choice, Window::default()).await?;
    let workers = page::all(async |window| state.workers(window).await).await?;
    let frame = Frame::new(totals.at, rates, queues.lines, &workers);
    Ok((frame, totals))
}

fn show(frame: &Frame, how: Output, redraws: bool) -> anyhow::Result<()> {
    if how == Output::Json {
        return output::json(frame);
    }
    if redraws {
        let size = terminal_size::terminal_size_of(io::stdout());
        let size = size.map(|(width, height)| (width.0.into(), height.0.into()));
        output::bytes(format!("{HOME}{}", frame.drawn(size)).as_bytes())?;
        return Ok(());
    }
    Ok(output::line(&frame.line())?)
}

/// Hidden until this is dropped.
struct Cursor;

impl Cursor {
    fn hide() -> io::Result<Self> {
        output::bytes(HIDE.as_bytes())?;
        Ok(Self)
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        output::bytes(SHOW.as_bytes()).ok();
    }
}
