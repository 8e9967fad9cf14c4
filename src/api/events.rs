//! What happens, told to those who watch: one watcher a replica looks once a second for all of them, and only while
//! there is one. What it says goes through one bounded channel; a listener that does not keep up learns how much it has
//! missed. Nothing here is stored, and nothing is decided by it.

mod look;
mod news;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::store::Pool;
use news::{Seen, TotalsView};

/// Listeners at once in a replica: people with a page open, and a few programs.
pub const MOST_LISTENERS: usize = 100;

/// From one look to the next.
const EVERY: Duration = Duration::from_secs(1);

/// Looks take this part of the time at most, on a database that is slow to answer.
const SHARE: u32 = 4;

/// A look that takes longer is given up.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Events that wait for a listener who is slow; beyond it the oldest are dropped. A busy second has some tens.
const BUFFER: usize = 256;

/// Looks that a new listener is told of, so that its picture does not begin empty: five minutes.
const KEPT: usize = 300;

/// One event: its name, and its data as JSON.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) name: &'static str,
    pub(super) data: Arc<str>,
}

impl Said {
    fn new(name: &'static str, data: &impl Serialize) -> Self {
        Self {
            name,
            data: serde_json::to_string(data).unwrap_or_default().into(),
        }
    }
}

/// The events of a process; clones share them.
#[derive(Clone, Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    said: broadcast::Sender<Said>,
    listeners: watch::Sender<usize>,
    /// What was last seen of all queues together, the oldest at first.
    past: Mutex<VecDeque<(Instant, TotalsView)>>,
    leaving: CancellationToken,
}

impl Events {
    /// The events, and the watcher that its owner has to run. When `leaving` comes, every stream says so and ends.
    #[must_use]
    pub fn new(pool: Pool, leaving: CancellationToken) -> (Self, Watcher) {
        let shared = Arc::new(Shared {
            said: broadcast::Sender::new(BUFFER),
            listeners: watch::Sender::new(0),
            past: Mutex::default(),
            leaving,
        });
        let watcher = Watcher {
            shared: Arc::clone(&shared),
            pool,
            seen: None,
            answers: true,
        };
        (Self { shared }, watcher)
    }

    /// From here on nothing is missed, as far as the buffer goes. Refused beyond [`MOST_LISTENERS`].
    pub(super) fn listen(&self) -> Result<Listener, Error> {
        let mut full = false;
        self.shared.listeners.send_if_modified(|listeners| {
            full = *listeners >= MOST_LISTENERS;
            *listeners += usize::from(!full);
            !full
        });
        if full {
            let message = format!(
                "this replica has {MOST_LISTENERS} listeners already: close one, or ask another replica."
            );
            return Err(Error::new("FP-117", message));
        }
        let said = self.shared.said.subscribe();
        Ok(Listener {
            first: Some(Said::new("history", &self.shared.history())),
            shared: Arc::clone(&self.shared),
            said,
            over: false,
        })
    }
}

/// A look that is past.
#[derive(Serialize)]
struct PastView {
    age_ms: u64,
    #[serde(flatten)]
    totals: TotalsView,
}

#[derive(Serialize)]
struct HistoryView {
    past: Vec<PastView>,
}

impl Shared {
    fn history(&self) -> HistoryView {
        let past = self.past.lock();
        let past = past.iter().map(|(at, totals)| PastView {
            age_ms: u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX),
            totals: *totals,
        });
        HistoryView {
            past: past.collect(),
        }
    }

    fn keep(&self, totals: TotalsView) {
        let mut past = self.past.lock();
        if past.len() >= KEPT {
            past.pop_front();
        }
        past.push_back((Instant::now(), totals));
    }
}

/// One who listens; leaves room for another one when dropped.
#[derive(Debug)]
pub(super) struct Listener {
    shared: Arc<Shared>,
    first: Option<Said>,
    said: broadcast::Receiver<Said>,
    over: bool,
}

impl Listener {
    /// The next event; none after the last one, which says that this replica leaves.
    pub(super) async fn next(&mut self) -> Option<Said> {
        #[derive(Serialize)]
        struct Lagged {
            missed: u64,
        }
        if self.over {
            return None;
        }
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let said = tokio::select! {
            biased;
            () = self.shared.leaving.cancelled() => Err(RecvError::Closed),
            said = self.said.recv() => said,
        };
        Some(match said {
            Ok(said) => said,
            Err(RecvError::Lagged(missed)) => Said::new("lagged", &Lagged { missed }),
            Err(RecvError::Closed) => {
                self.over = true;
                Said::new("bye", &serde_json::json!({}))
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared
            .listeners
            .send_modify(|listeners| *listeners -= 1);
    }
}

/// Looks on behalf of all who listen.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    pool: Pool,
    /// What the last look has seen; none before the first one of a watch, which has nothing to compare with.
    seen: Option<Seen>,
    /// Whether the database answered the last look.
    answers: bool,
}

impl Watcher {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut listeners = self.shared.listeners.subscribe();
        stop.run_until_cancelled(async {
            loop {
                if *listeners.borrow_and_update() == 0 {
                    self.seen = None;
                    if listeners.wait_for(|count| *count > 0).await.is_err() {
                        return;
                    }
                }
                let begun = Instant::now();
                self.look().await;
                let took = begun.elapsed();
                sleep(EVERY.saturating_sub(took).max(took * SHARE)).await;
            }
        })
        .await;
    }

    async fn look(&mut self) {
        let looked = self.pool.run(LOOK_DEADLINE, |client| {
            Box::pin(async move { look::read(client).await })
        });
        let (answers, detail) = match looked.await {
            Ok(look) => {
                let totals = TotalsView::of(&look);
                self.shared.keep(totals);
                // Nobody to hear it is no error.
                self.said(news::queues(&look, totals));
                let seen = Seen::of(look, self.seen.as_ref());
                if let Some(before) = &self.seen {
                    for said in seen.news(before) {
                        self.said(said);
                    }
                }
                self.seen = Some(seen);
                (true, None)
            }
            Err(error) => (false, Some(format!("{error}."))),
        };
        if std::mem::replace(&mut self.answers, answers) != answers {
            self.said(news::database(answers, detail));
        }
    }

    fn said(&self, said: Said) {
        // An error says that nobody listens any more.
        self.shared.said.send(said).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Settings;

    fn events() -> (Events, CancellationToken) {
        let settings = Settings::new("postgres://nobody@localhost/none");
        let leaving = CancellationToken::new();
        let (events, _watcher) = Events::new(Pool::new(&settings).unwrap(), leaving.clone());
        (events, leaving)
    }

    #[tokio::test]
    async fn listeners_are_bounded_and_one_that_leaves_makes_room() {
        let (events, _leaving) = events();
        let mut all: Vec<Listener> = (0..MOST_LISTENERS)
            .map(|_| events.listen().unwrap())
            .collect();
        assert_eq!(events.listen().unwrap_err().code.code, "FP-117");
        all.pop();
        all.push(events.listen().unwrap());
        all.clear();
        assert_eq!(*events.shared.listeners.borrow(), 0);
    }

    #[tokio::test]
    async fn a_slow_listener_learns_what_it_missed_and_a_leaving_replica_says_so_once() {
        let (events, leaving) = events();
        let mut slow = events.listen().unwrap();
        for number in 0..BUFFER + 3 {
            let said = Said::new("queues", &number);
            events.shared.said.send(said).unwrap();
        }
        assert_eq!(slow.next().await.unwrap().name, "history");
        let lagged = slow.next().await.unwrap();
        assert_eq!((lagged.name, &*lagged.data), ("lagged", r#"{"missed":3}"#));
        assert_eq!(&*slow.next().await.unwrap().data, "3");
        leaving.cancel();
        assert_eq!(slow.next().await.unwrap().name, "bye");
        assert!(slow.next().await.is_none());
    }
}
