//! How commands speak: data on stdout, talk on stderr.

use std::io::{self, Write};

use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::api;

/// What stdout gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// A line of data.
pub(super) fn line(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// Data as it is.
pub(super) fn bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// One JSON value on a line.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(&serde_json::to_string(value)?)?)
}

/// A sentence for people. That nobody listens is no failure.
pub(super) fn say(text: &str) {
    writeln!(io::stderr().lock(), "fencepost: {text}").ok();
}

/// A failure's sentence, with its code and field.
pub(super) fn sentence(error: &api::Error) -> String {
    let field = error.field.as_deref();
    let field = field.map(|field| format!(", field {field}"));
    format!(
        "{} [{} {}{}]",
        error.message,
        error.code.code,
        error.slug,
        field.unwrap_or_default()
    )
}

/// A table with this head.
pub(super) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(head);
    table
}

/// How many tasks may run at the same time.
pub(super) fn quota(max_in_flight: Option<i32>) -> String {
    max_in_flight.map_or_else(|| "none".to_owned(), |tasks| tasks.to_string())
}
