//! Which dead letters: flags that become the filter that every door sends. The database judges the values.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::cli::Usage;
use crate::store::dead_letters::Choice;

/// What a change is about.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct Which {
    /// The dead tasks' ids; without any, a filter chooses
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<i64>,
    #[command(flatten)]
    filter: Filter,
    /// Take every dead letter, where no filter is given
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Say how many letters it would take, and do nothing
    #[arg(long, conflicts_with = "ids")]
    pub(super) dry_run: bool,
}

impl Which {
    /// The choice by filter, which must be left out beside ids.
    pub(super) fn choice(&self) -> anyhow::Result<Choice> {
        if !self.ids.is_empty() && !self.filter.members().is_empty() {
            return Err(Usage("give either ids or a filter".to_owned()).into());
        }
        Ok(Choice {
            filter: self.filter.json()?,
            all: self.all,
        })
    }
}

/// What a letter must be, all of it.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Filter")]
pub(super) struct Filter {
    /// Of this namespace
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
    /// Of this task queue
    #[arg(long, value_name = "Q")]
    queue: Option<String>,
    /// Of this type
    #[arg(long = "type", value_name = "T")]
    task_type: Option<String>,
    /// Pinned to this node
    #[arg(long, value_name = "L")]
    node: Option<String>,
    /// failed, lost, unservable, `schedule_to_start` or unserved
    #[arg(long)]
    cause: Option<String>,
    /// The class of its last error
    #[arg(long, value_name = "CLASS")]
    error_class: Option<String>,
    /// Dead for longer than this, such as 2h
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Dead for no longer than this
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    newer_than: Option<Duration>,
    /// Died before then (RFC 3339)
    #[arg(long, value_name = "TIME")]
    dead_before: Option<String>,
    /// Died then or later (RFC 3339)
    #[arg(long, value_name = "TIME")]
    dead_after: Option<String>,
    /// Redriven already, or not
    #[arg(long, value_name = "true|false")]
    redriven: Option<bool>,
    /// Judged by its owner, or not
    #[arg(long, value_name = "true|false")]
    judged: Option<bool>,
}

impl Filter {
    fn members(&self) -> Map<String, Value> {
        let ms = |age: Option<Duration>| {
            age.map(|age| Value::from(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
        };
        let text = |text: &Option<String>| text.clone().map(Value::from);
        [
            ("namespace", text(&self.namespace)),
            ("task_queue", text(&self.queue)),
            ("task_type", text(&self.task_type)),
            ("node", text(&self.node)),
            ("cause", text(&self.cause)),
            ("error_class", text(&self.error_class)),
            ("older_than_ms", ms(self.older_than)),
            ("newer_than_ms", ms(self.newer_than)),
            ("dead_before", text(&self.dead_before)),
            ("dead_after", text(&self.dead_after)),
            ("redriven", self.redriven.map(Value::from)),
            ("judged", self.judged.map(Value::from)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    }

    /// The filter as the database takes it.
    pub(super) fn json(&self) -> anyhow::Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.members())?)
    }
}
