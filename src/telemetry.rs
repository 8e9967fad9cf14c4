//! What a replica counts, how it is printed for Prometheus, and the spans of traces.
//!
//! Whoever counts holds the handle of what it counts: nothing is looked up by name while tasks flow, and a batch costs one
//! addition a route. What only the moment of a scrape knows comes as plain data in [`Now`]. docs/metrics.md has every
//! name.

mod bounded;
mod counters;
mod now;
mod page;
mod parts;
mod tasks;
pub mod trace;

use std::fmt;

use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

pub use bounded::OTHER;
pub use counters::{
    Claims, Database, Door, Enqueued, Heard, Looks, Reports, SessionEnd, Sessions, Tenants,
};
pub use now::{DatabaseNow, LettersNow, NamespaceNow, Now, QueueNow, ReplicaNow};
pub use page::SHOWN;
pub use tasks::{Tasks, tally};

use bounded::Bounded;
use tasks::Routes;
use trace::{Spans, Tracing};

use crate::domain::id::RouteId;
use crate::domain::route::Route;

/// The media type of what [`Telemetry::print`] writes.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Names and values of the labels of one series.
type Labels = Vec<(&'static str, String)>;

/// All that one process counts, over its terms.
#[derive(Debug)]
pub struct Telemetry {
    /// What becomes of tasks, by route.
    routes: Routes,
    /// Failed deliveries by class.
    failures: Bounded<Counter>,
    /// Claims.
    pub claims: Claims,
    /// How tenants fare.
    pub tenants: Tenants,
    /// What came to be settled.
    pub reports: Reports,
    /// What made the sweep look.
    pub looks: Looks,
    /// Notifications.
    pub heard: Heard,
    /// Worker sessions.
    pub sessions: Sessions,
    /// Tasks that came in by the doors.
    pub enqueued: Enqueued,
    /// Reads for scrapes.
    pub database: Database,
    /// Spans on their way to a collector.
    pub spans: Spans,
    /// Where spans begin.
    pub tracing: Tracing,
    registry: Registry,
}

impl Default for Telemetry {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("fencepost");
        Self {
            routes: Routes::new(&mut registry),
            failures: Bounded::counters(
                &mut registry,
                "deliveries_failed",
                "Deliveries that failed or were lost, a row of their task's history each, by error class",
                "class",
            ),
            claims: Claims::new(&mut registry),
            tenants: Tenants::new(&mut registry),
            reports: Reports::new(&mut registry),
            looks: Looks::new(&mut registry),
            heard: Heard::new(&mut registry),
            sessions: Sessions::new(&mut registry),
            enqueued: Enqueued::new(&mut registry),
            database: Database::new(&mut registry),
            spans: Spans::new(&mut registry),
            tracing: Tracing::default(),
            registry,
        }
    }
}

impl Telemetry {
    /// Gives a route its series, if there is room for them. It is cheap for one that has them.
    pub fn meet(&self, route: &Route) {
        self.routes.meet(route);
    }

    /// Adds to one counter of each route: as many as the route comes up.
    pub fn count(
        &self,
        routes: impl IntoIterator<Item = RouteId>,
        of: impl Fn(&Tasks) -> Option<&Counter>,
    ) {
        self.routes.count(routes, of);
    }

    /// Counts failures of these classes.
    pub fn failed<'c>(&self, classes: impl IntoIterator<Item = &'c str>) {
        for (class, times) in tally(classes) {
            self.failures.of(class).inc_by(times);
        }
    }

    /// Everything as text, in the exposition format 0.0.4.
    ///
    /// # Errors
    /// None in practice: writing to memory does not fail.
    pub fn print(&self, now: &Now) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        prometheus_text::encode(&mut text, &page::gauges(now))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
