//! Series by a label whose values come from outside: the first values that this process meets get series of their own,
//! the others share one. Counters must not move from one to the other, so a place that is taken stays taken.

use std::collections::HashMap;

use parking_lot::RwLock;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Labels;

/// The value for all that has no series of its own.
pub const OTHER: &str = "other";
/// Values with series of their own, beside [`OTHER`].
const VALUES: usize = 200;
/// Characters of a value that are shown.
const LONGEST: usize = 200;

/// One metric by one such label.
#[derive(Debug)]
pub(super) struct Bounded<M, C = fn() -> M> {
    label: &'static str,
    family: Family<Labels, M, C>,
    known: RwLock<HashMap<String, M>>,
    other: M,
}

impl Bounded<Counter> {
    pub(super) fn counters(
        registry: &mut Registry,
        name: &str,
        help: &str,
        label: &'static str,
    ) -> Self {
        Self::new(registry, name, help, label, Counter::default)
    }
}

impl Bounded<Histogram> {
    pub(super) fn histograms(
        registry: &mut Registry,
        (name, help): (&str, &str),
        label: &'static str,
        make: fn() -> Histogram,
    ) -> Self {
        Self::new(registry, name, help, label, make)
    }
}

impl<M, C> Bounded<M, C>
where
    M: Clone + EncodeMetric + TypedMetric + std::fmt::Debug + Send + Sync + 'static,
    C: MetricConstructor<M> + Clone + std::fmt::Debug + Send + Sync + 'static,
    Family<Labels, M, C>: EncodeMetric,
{
    fn new(registry: &mut Registry, name: &str, help: &str, label: &'static str, make: C) -> Self {
        let family = Family::new_with_constructor(make);
        registry.register(name, help, family.clone());
        let other = family.get_or_create_owned(&vec![(label, OTHER.to_owned())]);
        Self {
            label,
            family,
            known: RwLock::default(),
            other,
        }
    }

    /// The metric of this value, or the one that it shares.
    pub(super) fn of(&self, value: &str) -> M {
        if let Some(metric) = self.known.read().get(value) {
            return metric.clone();
        }
        let mut known = self.known.write();
        if known.len() >= VALUES {
            return self.other.clone();
        }
        let shown = value.chars().take(LONGEST).collect();
        let metric = self.family.get_or_create_owned(&vec![(self.label, shown)]);
        known.insert(value.to_owned(), metric.clone());
        metric
    }
}
