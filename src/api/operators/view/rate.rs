//! Rates, as namespaces and queues show them.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::time;
use crate::domain::rate::Rate;

/// How many tasks may start in a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RateView {
    /// As it is set, such as `5/s`.
    #[schema(required)]
    pub rate: Option<String>,
    /// Tasks that may start at once.
    #[schema(required)]
    pub burst: Option<i32>,
    /// When the next one may start, where a rate puts it off.
    #[schema(required)]
    pub throttled_until: Option<String>,
}

impl RateView {
    pub(super) fn new(rate: Option<Rate>, throttled_until: Option<DateTime<Utc>>) -> Self {
        Self {
            rate: rate.map(|rate| rate.to_string()),
            burst: rate.map(|rate| rate.burst()),
            throttled_until: throttled_until.map(time),
        }
    }
}

/// For people.
impl std::fmt::Display for RateView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.rate, self.burst) {
            (Some(rate), Some(burst)) => write!(f, "{rate}, burst {burst}"),
            _ => f.write_str("none"),
        }
    }
}
