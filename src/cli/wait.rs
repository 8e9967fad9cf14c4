//! Waiting for the end of a task, for `enqueue --wait` and `task wait`.

use std::time::Duration;

use tokio::time::Instant;

use super::database::Session;
use super::output::{self, Output};
use crate::api::{LONGEST_WAIT, TaskView};
use crate::store::tasks::Task;

/// Between looks at a task while the database is away.
const AWAY: Duration = Duration::from_secs(1);

/// Waits for the end of a task and prints its result; 1 when it did not end as done, or not in time. A database that is
/// away meanwhile is waited for as well.
///
/// # Errors
/// Refusals, such as that there is no such task.
pub(super) async fn wait(
    session: &Session,
    id: i64,
    time: Option<Duration>,
    output: Output,
) -> anyhow::Result<u8> {
    output::say(&format!("waiting for task {id}"));
    let until = time.map(|time| Instant::now() + time);
    let mut told = false;
    loop {
        let left = until.map_or(LONGEST_WAIT, |until| until - Instant::now());
        match session.state.wait(id, left.min(LONGEST_WAIT)).await {
            Ok(task) if task.ended => return ended(task, output),
            Err(error) if error.is_refusal() => return Err(error.into()),
            // The task goes on whether or not we can look.
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    output::say(&output::sentence(&error));
                }
                tokio::time::sleep(AWAY.min(left)).await;
            }
            Ok(_) => {}
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            output::say(&format!("task {id} has not ended in time"));
            return Ok(1);
        }
    }
}

fn ended(task: Task, output: Output) -> anyhow::Result<u8> {
    let code = u8::from(task.state != "done");
    if code != 0 {
        let why = [&task.error_class, &task.error_message];
        let why: Vec<&str> = why.into_iter().flatten().map(String::as_str).collect();
        output::say(&format!(
            "task {} {}: {}",
            task.id,
            task.state,
            why.join(": ")
        ));
    }
    if task.result_expired {
        output::say(&format!("task {}: its result is kept no longer", task.id));
    }
    if output == Output::Json {
        output::json(&TaskView::from(task))?;
    } else if let Some(mut result) = task.result {
        if task.result_type.as_deref() == Some("application/json") {
            result.push(b'\n');
        }
        output::bytes(&result)?;
    }
    Ok(code)
}
