//! The bounds of a replica with 1,000 idle workers: `cargo bench --bench idle_workers`. Prints the figures, and
//! fails where one is out of bounds. `fencepost bench idle` does the measuring.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark speaks to whoever runs it"
)]

use std::process::{Command, ExitCode};

use serde_json::Value;

const WORKERS: &str = "1000";
const SECONDS: &str = "30";

/// Resident memory of the replica, in megabytes.
const MEMORY_MB: f64 = 150.0;
/// Of one core, over the whole time.
const CPU_PERCENT: f64 = 2.0;
/// A page that was left alone costs less where memory stays where it is.
const COLD_PAGE_US: f64 = 5.0;

fn main() -> ExitCode {
    let arguments = [
        "bench",
        "idle",
        "--workers",
        WORKERS,
        "--seconds",
        SECONDS,
        "--json",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(arguments)
        .output();
    let report = output.map(|output| {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    });
    let report = report.unwrap_or_default();
    println!("{report}");
    let within = |path: &str, bound: f64| {
        let number = report.pointer(path).and_then(Value::as_f64);
        let holds = number.is_some_and(|number| number < bound);
        if !holds {
            eprintln!("{path} is {number:?}, which must be less than {bound}");
        }
        holds
    };
    let memory = within("/replicas_mb/peak", MEMORY_MB);
    let cpu = within("/replicas_cpu_percent", CPU_PERCENT);
    let cold_page = report.pointer("/cold_page_us").and_then(Value::as_f64);
    if !cpu && cold_page.is_some_and(|us| us > COLD_PAGE_US) {
        eprintln!("this machine takes idle memory away: see docs/performance.md");
    }
    ExitCode::from(u8::from(!(memory && cpu)))
}
