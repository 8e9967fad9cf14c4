//! How figures are gathered and told.

use std::time::Duration;

use anyhow::Context as _;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::cli::output;

/// Significant digits of percentiles.
const DIGITS: u8 = 3;

/// No wait of a benchmark is longer.
const LONGEST_US: u64 = 3_600_000_000;

/// What a benchmark found.
#[derive(Debug)]
pub(super) struct Report {
    figures: Value,
    /// Nothing lost, nothing twice, nothing damaged.
    pub(super) holds: bool,
}

impl Report {
    /// `settings` and `figures` become one object, with the version.
    pub(super) fn new(
        bench: &str,
        settings: &impl Serialize,
        figures: &impl Serialize,
        holds: bool,
    ) -> anyhow::Result<Self> {
        let mut all = Map::new();
        all.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        all.insert("bench".into(), bench.into());
        all.insert("settings".into(), serde_json::to_value(settings)?);
        if let Value::Object(figures) = serde_json::to_value(figures)? {
            all.extend(figures);
        }
        Ok(Self {
            figures: Value::Object(all),
            holds,
        })
    }

    /// One object, or a table of its leaves.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            return output::json(&self.figures);
        }
        let mut table = Table::new();
        table.load_style(NOTHING);
        add_rows(&mut table, "", &self.figures);
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        output::line(&table.to_string())?;
        Ok(())
    }
}

fn add_rows(table: &mut Table, name: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let dot = if name.is_empty() { "" } else { "." };
                add_rows(table, &format!("{name}{dot}{field}"), value);
            }
        }
        Value::Null => {
            table.add_row([name, "-"]);
        }
        Value::String(text) => {
            table.add_row([name, text]);
        }
        other => {
            table.add_row([name, &other.to_string()]);
        }
    }
}

/// Waits, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Percentiles {
    pub(super) samples: u64,
    p50: f64,
    p95: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Percentiles {
    pub(super) fn p99(&self) -> f64 {
        self.p99
    }

    /// Of waits in microseconds; one that is negative, by clocks that differ, counts as none.
    pub(super) fn of_us(waits: impl IntoIterator<Item = i64>) -> anyhow::Result<Self> {
        let mut histogram =
            Histogram::<u64>::new_with_max(LONGEST_US, DIGITS).context("making a histogram")?;
        for wait in waits {
            histogram.saturating_record(u64::try_from(wait).unwrap_or(0));
        }
        let ms = |quantile| rounded(histogram.value_at_quantile(quantile) as f64 / 1e3, 2);
        Ok(Self {
            samples: histogram.len(),
            p50: ms(0.5),
            p95: ms(0.95),
            p99: ms(0.99),
            p999: ms(0.999),
            max: rounded(histogram.max() as f64 / 1e3, 2),
        })
    }
}

/// To so many digits behind the point.
pub(super) fn rounded(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

/// So many things in this time, per second.
pub(super) fn rate(count: f64, time: Duration) -> f64 {
    rounded(count / time.as_secs_f64().max(1e-6), 1)
}
