//! `fencepost task cancel`: by id, by dispatch key, by filter.

use std::time::Duration;

use super::super::Usage;
use super::super::database::{Database, Session};
use super::super::output::{self, Output};
use crate::api::{CancelMatching, CancelReport, CancelView, instant};
use crate::store::cancel::Matching;

/// A filter says how far it is this often.
const PROGRESS: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Cancel {
    /// The tasks' ids
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    /// The dispatch key of the one task that is meant
    #[arg(long, value_name = "K", conflicts_with = "ids")]
    key: Option<String>,
    /// Tasks of this namespace; with --key the namespace of the key
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    namespace: Option<String>,
    #[command(flatten)]
    filter: Filter,
    /// Why, for those who look at them later
    #[arg(long, default_value = "")]
    reason: String,
    /// What stdout gets
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, Clone, clap::Args)]
struct Filter {
    /// Of this task queue
    #[arg(long, value_name = "Q", conflicts_with_all = ["ids", "key"])]
    queue: Option<String>,
    /// Of this type
    #[arg(long = "type", value_name = "T", conflicts_with_all = ["ids", "key"])]
    task_type: Option<String>,
    /// Tasks pinned to this node
    #[arg(long, value_name = "L", conflicts_with_all = ["ids", "key"])]
    node: Option<String>,
    /// scheduled, ready, held or running
    #[arg(long, conflicts_with_all = ["ids", "key"])]
    state: Option<String>,
    /// A label that they have; may be given again
    #[arg(long = "label", value_name = "NAME=VALUE", conflicts_with_all = ["ids", "key"])]
    labels: Vec<String>,
    /// Enqueued at this time (RFC 3339) or later
    #[arg(long, value_name = "TIME", conflicts_with_all = ["ids", "key"])]
    enqueued_after: Option<String>,
    /// Enqueued before this time (RFC 3339)
    #[arg(long, value_name = "TIME", conflicts_with_all = ["ids", "key"])]
    enqueued_before: Option<String>,
    /// Every unfinished task
    #[arg(long, conflicts_with_all = ["ids", "key"])]
    all: bool,
    /// Only count those that match
    #[arg(long, conflicts_with_all = ["ids", "key"])]
    dry_run: bool,
}

impl Filter {
    fn matching(self, namespace: Option<String>, reason: String) -> anyhow::Result<CancelMatching> {
        let labels = self.labels.iter().map(|label| match label.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => Err(Usage(format!("--label {label}: a label is NAME=VALUE"))),
        });
        let at =
            |field: &str, text: Option<String>| text.map(|text| instant(field, &text)).transpose();
        Ok(CancelMatching {
            matching: Matching {
                namespace,
                task_queue: self.queue,
                task_type: self.task_type,
                node: self.node,
                state: self.state,
                labels: labels.collect::<Result<_, _>>()?,
                enqueued_after: at("enqueued_after", self.enqueued_after)?,
                enqueued_before: at("enqueued_before", self.enqueued_before)?,
            },
            all: self.all,
            dry_run: self.dry_run,
            reason,
            after: 0,
            budget: PROGRESS,
        })
    }
}

/// 1 when a task that was named does not exist, or one is left because it is locked.
pub(super) async fn cancel(args: Cancel) -> anyhow::Result<u8> {
    let session = args.database.open()?;
    if !args.ids.is_empty() {
        return by_ids(&session, args.ids, &args.reason, args.output).await;
    }
    if let Some(key) = args.key {
        let cancelled = session.state.cancel_key(args.namespace, key, args.reason);
        return show(args.output, vec![cancelled.await?], 0);
    }
    let asked = args.filter.matching(args.namespace, args.reason)?;
    let report = by_filter(&session, asked).await?;
    let code = u8::from(report.busy > 0);
    if args.output == Output::Json {
        output::json(&report)?;
        return Ok(code);
    }
    if report.dry_run {
        output::line(&format!("{} unfinished tasks match", report.matched))?;
        return Ok(code);
    }
    let mut table = output::table(&["matched", "ended", "requested", "already over", "locked"]);
    table.add_row(
        [
            report.matched,
            report.ended,
            report.requested,
            report.over,
            report.busy,
        ]
        .map(|count| count.to_string()),
    );
    output::line(&table.to_string())?;
    if report.busy > 0 {
        output::say("open transactions have locked some of them; a repeat finds those again");
    }
    Ok(code)
}

/// Goes on where each call stops, and says how far it is.
async fn by_filter(session: &Session, mut asked: CancelMatching) -> anyhow::Result<CancelReport> {
    let mut all = CancelReport {
        dry_run: asked.dry_run,
        ..CancelReport::default()
    };
    loop {
        let part = session.state.cancel_matching(asked.clone()).await?;
        all.matched += part.matched;
        all.ended += part.ended;
        all.requested += part.requested;
        all.over += part.over;
        all.busy += part.busy;
        let Some(next) = part.next else {
            return Ok(all);
        };
        output::say(&format!("{} so far", all.matched));
        asked.after = next.parse()?;
    }
}

async fn by_ids(session: &Session, ids: Vec<i64>, reason: &str, how: Output) -> anyhow::Result<u8> {
    let views = session.state.cancel_each(ids, reason).await?;
    let (missed, views): (Vec<_>, Vec<_>) = views.into_iter().partition(CancelView::is_missed);
    for CancelView { task_id, state } in &missed {
        output::say(&match state.as_str() {
            "busy" => format!("an open transaction has locked task {task_id}: repeat it later"),
            _ => format!("there is no task {task_id}."),
        });
    }
    let code = u8::from(!missed.is_empty());
    show(how, views, code)
}

fn show(how: Output, views: Vec<CancelView>, code: u8) -> anyhow::Result<u8> {
    match how {
        Output::Json => output::json(&views)?,
        Output::Table if views.is_empty() => {}
        Output::Table => {
            let mut table = output::table(&["id", "state"]);
            for view in views {
                table.add_row([view.task_id.to_string(), view.state]);
            }
            output::line(&table.to_string())?;
        }
    }
    Ok(code)
}
