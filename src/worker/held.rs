//! Every task that this process answers for: running, or finished and not acknowledged.

use std::collections::HashMap;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::outcome::{fits, report};
use crate::proto::worker as proto;

enum State {
    Running {
        run: tokio::task::Id,
        cancel: CancellationToken,
    },
    Finished {
        result: proto::Result,
        /// Acknowledged while a Register that names it was under way.
        answered: bool,
    },
}

struct Entry {
    task_id: i64,
    state: State,
}

/// What a delivered token means to this worker.
pub(super) enum Known<'a> {
    New,
    Running,
    Finished(&'a proto::Result),
}

/// Keyed by token: two deliveries of one task are two entries.
///
/// While a Register is under way, the dispatcher that it goes to may take over any task named in
/// it, and then waits for that task's result. So a result that the old stream acknowledges in the
/// meantime is kept until Welcome tells: taken over, it is reported there once more.
#[derive(Default)]
pub(super) struct Held {
    entries: HashMap<Bytes, Entry>,
    /// A Register is under way that names all entries.
    named: bool,
}

impl Held {
    /// Nothing runs and every result has been acknowledged.
    pub(super) fn is_settled(&self) -> bool {
        let answered =
            |entry: &Entry| matches!(entry.state, State::Finished { answered, .. } if answered);
        self.entries.values().all(answered)
    }

    pub(super) fn look(&self, token: &Bytes) -> Known<'_> {
        match self.entries.get(token).map(|entry| &entry.state) {
            None => Known::New,
            Some(State::Running { .. }) => Known::Running,
            Some(State::Finished { result, .. }) => Known::Finished(result),
        }
    }

    pub(super) fn start(
        &mut self,
        token: Bytes,
        task_id: i64,
        run: tokio::task::Id,
        cancel: CancellationToken,
    ) {
        let state = State::Running { run, cancel };
        self.entries.insert(token, Entry { task_id, state });
    }

    /// Keeps the result until its ack; false for a task that was abandoned meanwhile.
    pub(super) fn finish(&mut self, result: &proto::Result) -> bool {
        let Some(entry) = self.entries.get_mut(&result.token) else {
            return false;
        };
        entry.state = State::Finished {
            result: result.clone(),
            answered: false,
        };
        true
    }

    /// The token of a run that died without saying which task it had. Rare, so a scan will do.
    pub(super) fn token_of(&self, died: tokio::task::Id) -> Option<Bytes> {
        let is_it =
            |entry: &Entry| matches!(entry.state, State::Running { run, .. } if run == died);
        let (token, _) = self.entries.iter().find(|(_, entry)| is_it(entry))?;
        Some(token.clone())
    }

    /// Asks the handler to stop; its result still counts.
    pub(super) fn cancel(&self, token: &Bytes) {
        if let Some(Entry {
            state: State::Running { cancel, .. },
            ..
        }) = self.entries.get(token)
        {
            cancel.cancel();
        }
    }

    /// Asks the handler to stop and forgets its result.
    fn abandon(&mut self, token: &Bytes) {
        self.cancel(token);
        self.entries.remove(token);
    }

    /// Forgets a result that the dispatcher has answered. An ack for a running task, which no
    /// dispatcher sends, changes nothing.
    pub(super) fn acked(&mut self, token: &Bytes) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        match &mut entry.state {
            State::Running { .. } => {}
            State::Finished { answered, .. } if self.named => *answered = true,
            State::Finished { .. } => drop(self.entries.remove(token)),
        }
    }

    /// All of it, for a Register that is under way from now on.
    pub(super) fn name(&mut self) -> Vec<proto::Held> {
        self.named = true;
        let named = |(token, entry): (&Bytes, &Entry)| proto::Held {
            task_id: entry.task_id,
            token: token.clone(),
        };
        self.entries.iter().map(named).collect()
    }

    /// That Register came to nothing.
    pub(super) fn not_named(&mut self) {
        self.named = false;
        self.entries.retain(
            |_, entry| !matches!(entry.state, State::Finished { answered, .. } if answered),
        );
    }

    /// That Register was answered: abandoned tasks are stopped and forgotten, and all results that
    /// are left then are to be reported, whether or not Welcome names them as resumed.
    pub(super) fn welcome(&mut self, welcome: &proto::Welcome) {
        for token in &welcome.abandoned {
            self.abandon(token);
        }
        for token in &welcome.resumed {
            if let Some(Entry {
                state: State::Finished { answered, .. },
                ..
            }) = self.entries.get_mut(token)
            {
                *answered = false;
            }
        }
        self.not_named();
    }

    /// Replaces results that the present dispatcher would not take, as [`fits`] has it.
    pub(super) fn fit_results(&mut self, max_bytes: usize) {
        for (token, entry) in &mut self.entries {
            let State::Finished { result, .. } = &mut entry.state else {
                continue;
            };
            if let Some(proto::result::Outcome::Succeeded(success)) = &result.outcome
                && let Err(failure) = fits(&success.payload, max_bytes)
            {
                *result = report(token.clone(), Err(failure));
            }
        }
    }

    /// Results without an ack.
    pub(super) fn finished(&self) -> impl Iterator<Item = &proto::Result> {
        self.entries
            .values()
            .filter_map(|entry| match &entry.state {
                State::Finished {
                    result,
                    answered: false,
                } => Some(result),
                _ => None,
            })
    }
}
