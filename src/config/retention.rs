//! `[retention]`: how long what has ended is kept.

use std::time::Duration;

use super::kinds::{AGE, OPTIONAL_SPAN, POSITIVE_DURATION};
use super::reader::Reader;

/// A day, in the units of ages.
const DAY: Duration = Duration::from_hours(24);

/// How long what has ended is kept. None, written `never`, keeps it for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Between two rounds.
    pub interval: Duration,
    /// Tasks with their outcomes and failures: a day goes as a whole, when its last task has ended so long ago.
    pub history: Option<Duration>,
    /// Bytes of results, from the task's end; none keeps them as long as history.
    pub results: Option<Duration>,
    /// Dead letters, from their death.
    pub dead_letters: Option<Duration>,
    /// Runs of workflows with their events, from their end; a workflow's key goes with its last run.
    pub workflows: Option<Duration>,
    /// Dispatch keys of new tasks, from the task's end; zero forgets one with that end. None keeps what is stored in
    /// the database.
    pub dispatch_keys: Option<Duration>,
}

impl Retention {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let retention = Self {
            interval: reader.take(
                "retention.interval",
                Duration::from_mins(1),
                &POSITIVE_DURATION,
            ),
            history: reader.take("retention.history", Some(DAY * 14), &AGE),
            results: reader.take("retention.results", None, &AGE),
            dead_letters: reader.take("retention.dead_letters", Some(DAY * 90), &AGE),
            workflows: reader.take("retention.workflows", Some(DAY * 14), &AGE),
            dispatch_keys: reader.take("retention.dispatch_keys", None, &OPTIONAL_SPAN),
        };
        let within = |age: Option<Duration>| {
            let (Some(age), Some(history)) = (age, retention.history) else {
                return true;
            };
            age <= history
        };
        reader.relate(
            within(retention.results),
            "retention.results",
            "must not be longer than retention.history",
        );
        // A key is judged by its task's outcome.
        reader.relate(
            within(retention.dispatch_keys),
            "retention.dispatch_keys",
            "must not be longer than retention.history",
        );
        retention
    }
}
