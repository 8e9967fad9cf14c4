//! What keeps a task outside of the line.

use chrono::{DateTime, Utc};

use super::super::id::TaskId;
use super::super::rate::Rate;

/// The bits of `live.hold`.
const PAUSED: i16 = 1;
const KEY: i16 = 2;
const THROTTLED: i16 = 4;

/// What holds a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Bits: 1 workflow paused, 2 key busy, 4 throttled.
    pub bits: i16,
    /// Some of the tasks that have its concurrency key: they run, may run, or wait for a retry.
    pub key_tasks: Vec<TaskId>,
    /// Some of the dead letters that stop its concurrency key.
    pub key_letters: Vec<TaskId>,
    /// The rate of its concurrency key and when its token comes, where that is all that the key waits for.
    pub key_rate: Option<(Rate, DateTime<Utc>)>,
}

impl Hold {
    /// Whether nothing does, but perhaps a rate.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.reasons() == 0
    }

    /// The bits without that of a key which waits for its token.
    const fn reasons(&self) -> i16 {
        match self.key_rate {
            Some(_) => self.bits & !KEY,
            None => self.bits,
        }
    }

    /// The reasons, for people, without a full stop.
    #[must_use]
    pub fn sentence(&self) -> String {
        let has = |bit: i16| self.reasons() & bit != 0;
        let reasons = [
            has(PAUSED).then(|| "its workflow is paused".to_owned()),
            has(KEY).then(|| self.key()),
            has(THROTTLED).then(|| "it is throttled".to_owned()),
        ];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        format!("it is held: {}", reasons.join(", "))
    }

    fn key(&self) -> String {
        let list = |what: &str, ids: &[TaskId]| {
            let ids: Vec<String> = ids.iter().map(TaskId::to_string).collect();
            let plural = if ids.len() > 1 { "s" } else { "" };
            format!("{what}{plural} {}", ids.join(", "))
        };
        match (self.key_letters.as_slice(), self.key_tasks.as_slice()) {
            ([], []) => "others with its concurrency key are before it".to_owned(),
            ([], tasks) => format!("its concurrency key is busy with {}", list("task", tasks)),
            (letters, _) => format!(
                "its concurrency key is stopped by {}",
                list("dead letter", letters)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bits: i16) -> Hold {
        Hold {
            bits,
            ..Hold::default()
        }
    }

    #[test]
    fn every_hold_has_its_name() {
        assert_eq!(
            held(7).sentence(),
            "it is held: its workflow is paused, others with its concurrency key are before it, it is throttled"
        );
        let mut hold = Hold {
            key_tasks: vec![12],
            ..held(2)
        };
        assert_eq!(
            hold.sentence(),
            "it is held: its concurrency key is busy with task 12"
        );
        hold.key_letters = vec![7, 8];
        assert_eq!(
            hold.sentence(),
            "it is held: its concurrency key is stopped by dead letters 7, 8"
        );
    }
}
