//! Pure values and decisions: no I/O, no async, no clock.

pub mod ageing;
pub mod backoff;
pub mod checkup;
pub mod fairness;
pub mod id;
pub mod json;
pub mod outcome;
pub mod pause;
pub mod placement;
pub mod policy;
pub mod quota;
pub mod rate;
pub mod route;
pub mod scope;
pub mod settlement;
pub mod task;
pub mod trace_context;
pub mod verdict;
