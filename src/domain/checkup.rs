//! A check-up: what is wrong with a database and its replicas, and what to do about it.

use serde::Serialize;

/// Dead rows may outnumber the others by so much, and by this many at least, before that is worth a word: the hot tables
/// are vacuumed at a few hundred dead rows.
const DEAD_SHARE: i64 = 5;
const DEAD_ROWS: i64 = 20_000;
/// Partitions are made 14 days ahead, every minute.
const DAYS_AHEAD: f64 = 10.0;
/// Clocks of machines that keep time differ by milliseconds.
const SKEW_MS: i64 = 1000;
/// Connections in this share of the limit leave no room for a replica more.
const CONNECTIONS_PERCENT: i64 = 90;
/// The oldest and the newest major version that the tests run with.
const VERSIONS: std::ops::RangeInclusive<i32> = 14..=18;

/// The server's settings and load.
#[derive(Clone, Debug)]
pub struct Server {
    /// As `server_version_num` has it.
    pub version: i32,
    /// Settings that are off though commits reach the disk only with them.
    pub not_durable: Vec<String>,
    /// Dead rows are vacuumed by the server itself.
    pub autovacuum: bool,
    /// Sessions at most.
    pub max_connections: i64,
    /// Sessions of clients now.
    pub connections: i64,
    /// It can't be written to.
    pub standby: bool,
    /// Its clock, in milliseconds since 1970.
    pub clock_ms: i64,
    /// The role that owns the tables.
    pub owner: String,
    /// The role that asks.
    pub role: String,
    /// Whether it is the owner, or a member of it.
    pub owns: bool,
}

/// Somebody who keeps dead rows from being vacuumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `session`, `prepared transaction` or `replication slot`.
    pub kind: String,
    /// Its server process.
    pub pid: Option<i32>,
    /// The application's name, or that of the transaction or the slot.
    pub name: Option<String>,
    /// What it does.
    pub state: Option<String>,
    /// Since when; a slot does not say.
    pub seconds: Option<i64>,
    /// How many transactions have begun since.
    pub transactions: Option<i32>,
}

/// The table of unfinished tasks.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// With its indexes.
    pub bytes: i64,
    /// As the statistics have them.
    pub rows: i64,
    /// Rows that are gone and not vacuumed.
    pub dead_rows: i64,
    /// Since the last vacuum.
    pub vacuumed_s: Option<i64>,
}

/// What must never be.
#[derive(Clone, Copy, Debug)]
pub struct Contradictions {
    /// Unfinished tasks that were looked at.
    pub looked_at: i64,
    /// Those of them that have ended as well.
    pub ended_too: i64,
    /// Those that stay claimed for a replica that is gone.
    pub abandoned: i64,
}

/// Whether the schema is looked after.
#[derive(Clone, Debug)]
pub struct Upkeep {
    /// Replicas that beat.
    pub alive: i64,
    /// Replicas that are silent and that nobody has declared dead.
    pub silent: Vec<String>,
    /// Days until ids run out of partitions.
    pub days_ahead: f64,
    /// Queues that nobody serves.
    pub unserved: i64,
}

/// All that is judged.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The server.
    pub server: Server,
    /// Who keeps dead rows, the oldest first.
    pub holders: Vec<Holder>,
    /// Unfinished tasks.
    pub live: Live,
    /// What must never be.
    pub contradictions: Contradictions,
    /// Replicas and partitions.
    pub upkeep: Upkeep,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It will become a problem, or slows work down.
    Warning,
    /// Tasks are lost, stuck or in danger.
    Problem,
}

impl Verdict {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a word.
    pub check: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What is there.
    pub found: String,
    /// What to do; empty where there is nothing to do.
    pub advice: String,
}

fn finding(check: &'static str, verdict: Verdict, found: String, advice: &str) -> Finding {
    let advice = if verdict == Verdict::Ok { "" } else { advice };
    Finding {
        check,
        verdict,
        found,
        advice: advice.to_owned(),
    }
}

fn unless(holds: bool, otherwise: Verdict) -> Verdict {
    if holds { Verdict::Ok } else { otherwise }
}

/// Judges all of it: one finding a check, in a fixed order. `skew_ms`: this machine's clock minus the server's.
#[must_use]
pub fn judge(facts: &Facts, skew_ms: i64) -> Vec<Finding> {
    vec![
        version(&facts.server),
        role(&facts.server),
        durability(&facts.server),
        vacuum(&facts.server),
        connections(&facts.server),
        clock(skew_ms),
        partitions(&facts.upkeep),
        replicas(&facts.upkeep),
        contradictions(facts.contradictions),
        snapshots(&facts.holders),
        bloat(facts.live),
        unserved(&facts.upkeep),
    ]
}

fn version(server: &Server) -> Finding {
    let major = server.version / 10_000;
    let (verdict, advice) = if server.standby {
        (
            Verdict::Problem,
            "point fencepost at the primary: nothing can be written here",
        )
    } else {
        let tested = unless(VERSIONS.contains(&major), Verdict::Warning);
        (
            tested,
            "use a version between 14 and 18: the others are untested",
        )
    };
    let standby = if server.standby { ", a standby" } else { "" };
    finding(
        "server",
        verdict,
        format!("PostgreSQL {major}{standby}"),
        advice,
    )
}

fn role(server: &Server) -> Finding {
    let Server {
        role, owner, owns, ..
    } = server;
    let found = format!("{role} asks, {owner} owns the tables");
    let advice = "run replicas as the owner or as a member of it, since they make and drop the days' partitions; producers may be anybody with the grants of docs/operations.md";
    finding("role", unless(*owns, Verdict::Warning), found, advice)
}

fn durability(server: &Server) -> Finding {
    let off = &server.not_durable;
    let found = if off.is_empty() {
        "commits reach the disk".to_owned()
    } else {
        let off = off.join(" and ");
        format!("{off} off: a crash of the server can lose or damage tasks")
    };
    let verdict = unless(server.not_durable.is_empty(), Verdict::Problem);
    finding("durability", verdict, found, "turn it on")
}

fn vacuum(server: &Server) -> Finding {
    let found = if server.autovacuum {
        "autovacuum runs"
    } else {
        "autovacuum is off"
    };
    let advice = "turn autovacuum and track_counts on: every task leaves dead rows";
    finding(
        "autovacuum",
        unless(server.autovacuum, Verdict::Problem),
        found.to_owned(),
        advice,
    )
}

fn connections(server: &Server) -> Finding {
    let fits = server.connections * 100 <= server.max_connections * CONNECTIONS_PERCENT;
    let found = format!(
        "{} of {} connections",
        server.connections, server.max_connections
    );
    let advice = "raise max_connections, lower database.pool_size, or put a pooler in front of the applications";
    finding("connections", unless(fits, Verdict::Warning), found, advice)
}

fn clock(skew_ms: i64) -> Finding {
    let found = format!("this machine is {skew_ms} ms ahead of the server");
    let advice = "keep both by NTP: logs of replicas and times in the database do not match. Tasks go by the server's clock alone";
    finding(
        "clock",
        unless(skew_ms.abs() < SKEW_MS, Verdict::Warning),
        found,
        advice,
    )
}

fn partitions(upkeep: &Upkeep) -> Finding {
    let verdict = match upkeep.days_ahead {
        days if days >= DAYS_AHEAD => Verdict::Ok,
        days if days > 1.0 => Verdict::Warning,
        _ => Verdict::Problem,
    };
    let found = format!("partitions for {:.1} days ahead", upkeep.days_ahead);
    let advice = "start a replica, which makes them every minute; if one runs, its log says what it waits for (a long transaction, mostly)";
    finding("partitions", verdict, found, advice)
}

fn replicas(upkeep: &Upkeep) -> Finding {
    let (verdict, advice) = if upkeep.alive == 0 {
        (
            Verdict::Problem,
            "start one with `fencepost serve`: nothing is delivered",
        )
    } else {
        (
            unless(upkeep.silent.is_empty(), Verdict::Warning),
            "the others declare a silent one dead by themselves; look at their logs if it stays",
        )
    };
    let silent = if upkeep.silent.is_empty() {
        String::new()
    } else {
        format!(", silent: {}", upkeep.silent.join(", "))
    };
    finding(
        "replicas",
        verdict,
        format!("{} alive{silent}", upkeep.alive),
        advice,
    )
}

fn contradictions(seen: Contradictions) -> Finding {
    let Contradictions {
        looked_at,
        ended_too,
        abandoned,
    } = seen;
    let (verdict, advice) = match (ended_too, abandoned) {
        (0, 0) => (Verdict::Ok, ""),
        (0, _) => (
            Verdict::Warning,
            "start a replica, which puts them back; if one runs, its log says what keeps it",
        ),
        _ => (
            Verdict::Problem,
            "report it with the ids: a task stands in one table, always",
        ),
    };
    let found = format!(
        "of {looked_at} unfinished tasks {ended_too} have ended as well and {abandoned} belong to replicas that are gone"
    );
    finding("invariants", verdict, found, advice)
}

fn snapshots(holders: &[Holder]) -> Finding {
    let named: Vec<String> = holders.iter().map(ToString::to_string).collect();
    let found = if named.is_empty() {
        "nobody keeps dead rows from being vacuumed".to_owned()
    } else {
        named.join("; ")
    };
    let advice = "end it (pg_terminate_backend(pid), rollback prepared, pg_drop_replication_slot): until then every claim passes over more dead rows";
    finding(
        "snapshots",
        unless(named.is_empty(), Verdict::Warning),
        found,
        advice,
    )
}

fn bloat(live: Live) -> Finding {
    let fine = live.dead_rows < DEAD_ROWS || live.dead_rows < live.rows.saturating_mul(DEAD_SHARE);
    let vacuumed = live.vacuumed_s.map_or_else(
        || "never vacuumed".to_owned(),
        |seconds| format!("vacuumed {seconds} s ago"),
    );
    let megabytes = live.bytes / 1_000_000;
    let found = format!(
        "{} unfinished tasks and {} dead rows in {megabytes} MB, {vacuumed}",
        live.rows, live.dead_rows
    );
    let advice = "see `snapshots` and `autovacuum`; else `vacuum fencepost.live` now";
    finding("bloat", unless(fine, Verdict::Warning), found, advice)
}

fn unserved(upkeep: &Upkeep) -> Finding {
    let found = format!("{} queues with due tasks have no worker", upkeep.unserved);
    let advice = "`fencepost queue unserved` lists them with the reason";
    finding(
        "workers",
        unless(upkeep.unserved == 0, Verdict::Warning),
        found,
        advice,
    )
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(name) = self.name.as_deref().filter(|name| !name.is_empty()) {
            write!(f, " {name:?}")?;
        }
        if let Some(pid) = self.pid {
            write!(f, ", pid {pid}")?;
        }
        if let Some(state) = &self.state {
            write!(f, ", {state}")?;
        }
        if let Some(seconds) = self.seconds {
            write!(f, ", for {seconds} s")?;
        }
        if let Some(transactions) = self.transactions {
            write!(f, ", {transactions} transactions behind")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
