//! What counters and histograms are made of.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::Labels;

/// From 1 to 2,048 rows.
pub(super) fn rows() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 12))
}

/// From half a millisecond to eight seconds.
pub(super) fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 15))
}

/// From 10 ms to 11 minutes.
pub(super) fn waits() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 4.0, 9))
}

pub(super) fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

pub(super) fn histogram(
    registry: &mut Registry,
    name: &str,
    help: &str,
    histogram: Histogram,
) -> Histogram {
    registry.register(name, help, histogram.clone());
    histogram
}

/// One counter for each value of a label.
#[derive(Debug)]
pub(super) struct Labelled<const N: usize> {
    pub(super) counters: [Counter; N],
}

impl<const N: usize> Labelled<N> {
    pub(super) fn new(
        registry: &mut Registry,
        name: &str,
        help: &str,
        label: &'static str,
        values: [&str; N],
    ) -> Self {
        let family: Family<Labels, Counter> = Family::default();
        registry.register(name, help, family.clone());
        let counters =
            values.map(|value| family.get_or_create_owned(&vec![(label, value.to_owned())]));
        Self { counters }
    }

    pub(super) fn add(&self, index: usize, more: u64) {
        if let Some(counter) = self.counters.get(index) {
            counter.inc_by(more);
        }
    }
}
