//! CPU time and memory of processes, from `/proc`; where there is none, nothing is known.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use serde::Serialize;

use super::figures::rounded;
use crate::cli::stage::Stage;
use crate::cli::stage::process::{Life, Role};

/// Ticks of `/proc` in a second: the kernel's `USER_HZ`, 100 on every architecture that matters here.
const TICKS: u64 = 100;

/// CPU time that was used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    database: Option<Duration>,
    replicas: Option<Duration>,
    workers: Option<Duration>,
}

/// CPU time of a span, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct CpuSeconds {
    database: Option<f64>,
    pub(super) replicas: Option<f64>,
    workers: Option<f64>,
}

impl Cpu {
    /// As of now.
    pub(super) fn read(stage: &Stage) -> Self {
        let processes = read_processes();
        let sum = |pids: &[u32]| {
            let times = pids.iter().map(|pid| tree(&processes, *pid));
            times
                .sum::<Option<u64>>()
                .map(|ticks| Duration::from_millis(ticks * 1000 / TICKS))
        };
        Self {
            database: stage.database_pid().and_then(|pid| sum(&[pid])),
            replicas: sum(&pids(stage, Role::Replica)),
            workers: sum(&pids(stage, Role::Worker)),
        }
    }

    pub(super) fn since(self, start: Self) -> CpuSeconds {
        let span = |end: Option<Duration>, start: Option<Duration>| {
            let span = end?.saturating_sub(start?);
            Some(rounded(span.as_secs_f64(), 2))
        };
        CpuSeconds {
            database: span(self.database, start.database),
            replicas: span(self.replicas, start.replicas),
            workers: span(self.workers, start.workers),
        }
    }
}

/// Memory of all processes of a role, in megabytes (10^6 bytes).
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Memory {
    now: Option<f64>,
    pub(super) peak: Option<f64>,
}

/// Memory of replicas or workers, as of now and at its highest.
pub(super) fn memory(stage: &Stage, role: Role) -> Memory {
    let sum = |field: &str| {
        let kilobytes = pids(stage, role).into_iter().map(|pid| status(pid, field));
        let sum: Option<u64> = kilobytes.sum();
        sum.map(|sum| rounded(sum as f64 * 1024.0 / 1e6, 1))
    };
    Memory {
        now: sum("VmRSS:"),
        peak: sum("VmHWM:"),
    }
}

fn pids(stage: &Stage, role: Role) -> Vec<u32> {
    let up = stage.processes.iter();
    up.filter(|process| process.role == role && process.life == Life::Up)
        .map(|process| process.pid)
        .collect()
}

/// The server that a session's process belongs to. Of a server elsewhere the id names no process here, or one
/// that is no PostgreSQL: nothing then.
pub(super) fn server_of(session: i32) -> Option<u32> {
    let session = u32::try_from(session).ok()?;
    let (server, _) = *read_processes().get(&session)?;
    (is_postgres(session) && is_postgres(server)).then_some(server)
}

fn is_postgres(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres")
}

/// A size of a process in kilobytes.
fn status(pid: u32, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Parent and ticks of every process; in the ticks are those of its children that have ended and been waited for.
fn read_processes() -> HashMap<u32, (u32, u64)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let parent = fields.get(1)?.parse().ok()?;
        let times = fields
            .get(11..15)?
            .iter()
            .map(|time| time.parse::<u64>().ok());
        Some((pid, (parent, times.sum::<Option<u64>>()?)))
    })
    .collect()
}

/// Ticks of a process and its descendants.
fn tree(processes: &HashMap<u32, (u32, u64)>, root: u32) -> Option<u64> {
    let own = processes.get(&root)?.1;
    let children = processes.iter().filter(|(_, (parent, _))| *parent == root);
    let below: u64 = children.filter_map(|(pid, _)| tree(processes, *pid)).sum();
    Some(own + below)
}
