//! Writes batches of reports, as often as it takes.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use deadpool_postgres::GenericClient;

use super::Report;
use super::freed::take_slots;
use super::slow::SlowLane;
use crate::dispatch::hub::DATABASE_DEADLINE;
use crate::dispatch::routes::Routes;
use crate::domain::id::{KeyHash, RouteId, RunId, TaskId, Token};
use crate::domain::outcome::Failure;
use crate::domain::settlement::{Move, Settlement};
use crate::fleet::{Reply, SessionId};
use crate::proto::worker::dispatcher_frame::Frame;
use crate::proto::worker::{ResultAck, ResultAcks, Verdict as Answer};
use crate::store::settle::{self, Completed, Completion, Goes, Missed, Return, Returned, Verdict};
use crate::store::{Errand, Error, dispatchers};

/// First wait after the database failed; doubles up to the last.
const RETRY_WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// A put-back row that is due within this time is worth waking other replicas for; else their polls find it.
const SOON: Duration = Duration::from_secs(1);

/// Writes batches; what waits for a lock goes on to the slow lane.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) slow: SlowLane,
}

/// What one pass over unique reports came to.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) recorded: HashSet<TaskId>,
    pub(super) busy: HashSet<TaskId>,
    pub(super) completed: Vec<Completed>,
    pub(super) returned: Vec<Returned>,
    /// Runs of workflows whose members have ended.
    pub(super) runs: BTreeSet<RunId>,
    /// Concurrency keys of tasks that have ended.
    pub(super) keys: BTreeSet<KeyHash>,
}

impl Writer {
    /// Writes all reports and answers their workers; returns how many went on to the slow lane.
    pub(super) async fn write(&self, batch: Vec<Report>) -> usize {
        let mut handed_on = 0;
        let mut rounds = unique_rounds(batch);
        while let Some(mut round) = rounds.pop_front() {
            let began = Instant::now();
            match self.write_stubbornly(&mut round).await {
                Ok(written) => {
                    self.count(&written, round.len(), began.elapsed());
                    written.end_spans(&round);
                    self.free(&mut round, &written);
                    self.wake(&round, &written.returned).await;
                    handed_on += self.answer(round, &written);
                    self.slow.runs.look_at(written.runs);
                    self.slow.keys.look_at(written.keys);
                }
                Err(error) => rounds.extend(self.isolate(round, &error)),
            }
        }
        handed_on
    }

    /// One transaction a kind, repeated until the database answers. An error is one that the data has caused.
    async fn write_stubbornly(&self, round: &mut [Report]) -> Result<Written, Error> {
        let mut wait = RETRY_WAITS.0;
        loop {
            let (reports, max_losses) = (round.to_vec(), self.slow.settings.max_losses);
            let written = self
                .slow
                .pool
                .run_for(Errand::End, DATABASE_DEADLINE, move |client| {
                    Box::pin(async move { write_once(client, &reports, max_losses).await })
                })
                .await;
            match written {
                Ok(written) => return Ok(written),
                Err(error) if error.is_data() => return Err(error),
                Err(error) => {
                    said(&error, "settling is tried again");
                    // Callers that need no database may use them meanwhile.
                    drop(take_slots(round));
                    tokio::time::sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
                    wait = (wait * 2).min(RETRY_WAITS.1);
                }
            }
        }
    }

    /// Halves a round that the database can't take, until the report at fault stands alone: its task then ends
    /// with that as the reason.
    fn isolate(&self, mut round: Vec<Report>, error: &Error) -> Vec<Vec<Report>> {
        if round.len() > 1 {
            let rest = round.split_off(round.len() / 2);
            return vec![round, rest];
        }
        round.retain_mut(|report| condemn(report, error, &self.slow.routes));
        if round.is_empty() {
            return Vec::new();
        }
        vec![round]
    }

    async fn wake(&self, round: &[Report], returned: &[Returned]) {
        let soon: HashSet<TaskId> = round
            .iter()
            .filter(|report| match &report.settlement {
                Settlement::Return { delay, .. } => delay.is_none_or(|delay| delay < SOON),
                Settlement::Complete { .. } => false,
            })
            .map(|report| report.token.id)
            .collect();
        if returned.iter().any(|task| task.goes == Goes::Dead) {
            self.slow.wakes.letter();
        }
        let ready = returned.iter().filter(|task| task.goes == Goes::Ready);
        let mut routes: Vec<RouteId> = Vec::new();
        for task in ready {
            self.slow.wakes.route(task.route, true);
            if soon.contains(&task.id) && !routes.contains(&task.route) {
                routes.push(task.route);
            }
        }
        if routes.is_empty() {
            return;
        }
        let own = round.iter().find_map(|report| report.owner).unwrap_or(0);
        let woken = self
            .slow
            .pool
            .run(DATABASE_DEADLINE, move |client| {
                Box::pin(async move { dispatchers::wake_sleepers(client, &routes, own).await })
            })
            .await;
        if let Err(error) = woken {
            // Advice only: the others poll.
            tracing::debug!(%error, "other replicas were not woken");
        }
    }

    /// Tells the workers what their reports were worth, and hands those that wait for a lock to the slow lane.
    fn answer(&self, round: Vec<Report>, written: &Written) -> usize {
        let mut acks = Acks::default();
        let mut handed_on = 0;
        for report in round {
            if written.busy.contains(&report.token.id) {
                handed_on += 1;
                self.slow.take(report);
            } else {
                acks.add(&report, written.recorded.contains(&report.token.id));
            }
        }
        acks.send();
        handed_on
    }
}

/// A report that can't be stored ends its task with that as the reason. False: that can't be stored either, and the row
/// stays claimed until its deadline.
pub(super) fn condemn(report: &mut Report, error: &Error, routes: &Routes) -> bool {
    const CLASS: &str = "result_invalid";
    let condemned = matches!(&report.settlement, Settlement::Return { error: Some(failure), .. } if failure.class == CLASS);
    let route = report.route.and_then(|route| routes.one(route));
    let queue = route.as_deref().map(|route| route.task_queue.as_str());
    let (task, fence, worker) = (report.token.id, report.token.fence, report.worker_name());
    if condemned {
        tracing::error!(task, queue, worker, fence, %error, "a task can't be ended; it stays claimed until its deadline");
        return false;
    }
    tracing::warn!(task, queue, worker, fence, %error, "a report can't be stored: its task ends with that reason");
    report.settlement = Settlement::Return {
        how: Move::DeadLetter,
        delay: None,
        error: Some(Failure::new(
            CLASS,
            format!("The result can't be stored: {error}."),
        )),
    };
    true
}

/// A failure that passes is nothing to tell; another one would go on unseen.
pub fn said(error: &Error, what: &str) {
    if error.is_transient() {
        tracing::debug!(%error, "{what}");
    } else {
        tracing::warn!(%error, "{what}");
    }
}

/// Answers by session, so that each gets one frame.
#[derive(Debug, Default)]
pub(super) struct Acks {
    frames: HashMap<SessionId, (Reply, Vec<ResultAck>)>,
}

impl Acks {
    pub(super) fn add(&mut self, report: &Report, recorded: bool) {
        let Some(reply) = &report.reply else { return };
        if !recorded {
            let (task, fence, worker) = (report.token.id, report.token.fence, report.worker_name());
            tracing::debug!(task, worker, fence, "report is superseded");
        }
        let verdict = if recorded {
            Answer::Recorded
        } else {
            Answer::Superseded
        };
        let ack = ResultAck {
            token: report.token.to_string().into(),
            verdict: verdict.into(),
        };
        self.frames
            .entry(reply.session().id)
            .or_insert_with(|| (reply.clone(), Vec::new()))
            .1
            .push(ack);
    }

    pub(super) fn send(self) {
        for (reply, acks) in self.frames.into_values() {
            reply.session().push(Frame::Acks(ResultAcks { acks }));
        }
    }
}

/// Splits a batch so that no task stands twice in a round; a task's best report comes first: that of the newest
/// epoch, a success before a failure, then that of the newest delivery.
fn unique_rounds(mut batch: Vec<Report>) -> VecDeque<Vec<Report>> {
    let rank = |report: &Report| {
        let success = matches!(report.settlement, Settlement::Complete { .. });
        std::cmp::Reverse((report.token.epoch, success, report.token.fence))
    };
    batch.sort_by_key(|report| (report.token.id, rank(report)));
    let mut rounds: VecDeque<Vec<Report>> = VecDeque::new();
    let mut depth = 0;
    let mut last = None;
    for report in batch {
        depth = if last == Some(report.token.id) {
            depth + 1
        } else {
            0
        };
        last = Some(report.token.id);
        if depth == rounds.len() {
            rounds.push_back(Vec::new());
        }
        if let Some(round) = rounds.get_mut(depth) {
            round.push(report);
        }
    }
    rounds
}

/// One statement a kind over unique reports, and a second look at those that matched nothing.
pub(super) async fn write_once(
    client: &impl GenericClient,
    reports: &[Report],
    max_losses: i32,
) -> Result<Written, Error> {
    let mut written = Written::default();
    let (completions, returns) = by_kind(reports);
    if !completions.is_empty() {
        written.completed = settle::complete(client, &completions).await?;
        for ended in &written.completed {
            written.recorded.insert(ended.id);
            written.runs.extend(ended.run);
            written.keys.extend(ended.key);
        }
    }
    if !returns.is_empty() {
        written.returned = settle::give_back(client, &returns, max_losses).await?;
        written
            .recorded
            .extend(written.returned.iter().map(|task| task.id));
        written
            .runs
            .extend(written.returned.iter().filter_map(Returned::ended_in));
        let keys = written.returned.iter().filter_map(|task| task.key);
        written.keys.extend(keys);
    }
    let missed: Vec<Missed> = reports
        .iter()
        .filter(|report| !written.recorded.contains(&report.token.id))
        .map(|report| Missed {
            token: report.token,
            success: matches!(report.settlement, Settlement::Complete { .. }),
            worker: report.worker.as_ref().map(|(worker, _)| worker.clone()),
            owner: report.owner,
        })
        .collect();
    if !missed.is_empty() {
        for judged in settle::look_again(client, &missed).await? {
            written.runs.extend(judged.run);
            written.keys.extend(judged.key);
            match judged.verdict {
                Verdict::Recorded => written.recorded.insert(judged.id),
                Verdict::Busy => written.busy.insert(judged.id),
                Verdict::Superseded => false,
            };
        }
    }
    Ok(written)
}

impl Written {
    pub(super) fn is_recorded(&self, token: Token) -> bool {
        self.recorded.contains(&token.id)
    }

    pub(super) fn is_busy(&self, token: Token) -> bool {
        self.busy.contains(&token.id)
    }
}

fn by_kind(reports: &[Report]) -> (Vec<Completion>, Vec<Return>) {
    let mut completions = Vec::new();
    let mut returns = Vec::new();
    for report in reports {
        let worker = report.worker.as_ref().map(|(worker, _)| worker.clone());
        match &report.settlement {
            Settlement::Complete { result } => {
                completions.push(Completion {
                    token: report.token,
                    result: result.clone(),
                    worker,
                });
            }
            Settlement::Return { how, delay, error } => returns.push(Return {
                token: report.token,
                owner: report.owner,
                how: *how,
                delay: *delay,
                error: error.clone(),
                worker,
                node: report.worker.as_ref().map(|(_, node)| node.clone()),
            }),
        }
    }
    (completions, returns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(id: TaskId, epoch: i32, fence: i32, success: bool) -> Report {
        let settlement = if success {
            Settlement::Complete { result: None }
        } else {
            Settlement::Return {
                how: Move::Retry,
                delay: None,
                error: None,
            }
        };
        Report::new(Token { id, epoch, fence }, None, settlement)
    }

    #[test]
    fn no_task_stands_twice_in_a_round_and_its_best_report_comes_first() {
        let batch = vec![
            report(2, 0, 1, false),
            report(1, 0, 1, false),
            report(1, 0, 1, true),
            report(1, 1, 2, false),
            report(1, 0, 2, true),
        ];
        let tokens: Vec<Vec<(TaskId, i32, i32)>> = unique_rounds(batch)
            .iter()
            .map(|round| {
                round
                    .iter()
                    .map(|r| (r.token.id, r.token.epoch, r.token.fence))
                    .collect()
            })
            .collect();
        assert_eq!(
            tokens,
            [
                vec![(1, 1, 2), (2, 0, 1)],
                vec![(1, 0, 2)],
                vec![(1, 0, 1)],
                vec![(1, 0, 1)]
            ]
        );
    }
}
