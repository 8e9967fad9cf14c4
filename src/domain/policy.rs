//! The limits that one task runs under, resolved from task, route, namespace and server.

use std::time::Duration;

use serde::Deserialize;

use super::backoff::Backoff;
use super::route::Route;
use super::task::Body;

/// What the server uses where nothing nearer to the task says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// Tries before a failing task becomes a dead letter, at least 1.
    pub max_attempts: u32,
    /// Waits between tries.
    pub backoff: Backoff,
    /// Longest run, from acceptance; zero for none.
    pub run_timeout: Duration,
}

/// The limits of one task. `None` for a timeout means none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Tries before the task becomes a dead letter, at least 1.
    pub max_attempts: u32,
    /// Waits between tries.
    pub backoff: Backoff,
    /// Longest run, from acceptance.
    pub run_timeout: Option<Duration>,
    /// Longest silence between two reports of progress.
    pub heartbeat_timeout: Option<Duration>,
}

/// The settings in a task's `options`, which the enqueue has checked.
#[derive(Clone, Debug, Default, Deserialize)]
struct Options {
    backoff_base_ms: Option<f64>,
    backoff_multiplier: Option<f64>,
    backoff_max_ms: Option<f64>,
}

fn milliseconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number / 1000.0).ok()
}

impl Policy {
    /// The task's own setting, else its route's (which holds its namespace's too), else the server's.
    #[must_use]
    pub fn resolve(body: &Body, route: &Route, defaults: &Defaults) -> Self {
        let options: Options = body
            .options
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let timeout = |ms: Option<i32>, default: Duration| {
            let chosen = ms.map_or(default, |ms| {
                Duration::from_millis(u64::try_from(ms).unwrap_or(0))
            });
            (!chosen.is_zero()).then_some(chosen)
        };
        Self {
            max_attempts: body
                .max_attempts
                .or(route.max_attempts)
                .unwrap_or(defaults.max_attempts)
                .max(1),
            backoff: Backoff {
                base: options
                    .backoff_base_ms
                    .and_then(milliseconds)
                    .or(route.backoff_base)
                    .unwrap_or(defaults.backoff.base),
                multiplier: options
                    .backoff_multiplier
                    .or(route.backoff_multiplier)
                    .unwrap_or(defaults.backoff.multiplier),
                max: options
                    .backoff_max_ms
                    .and_then(milliseconds)
                    .or(route.backoff_max)
                    .unwrap_or(defaults.backoff.max),
            },
            run_timeout: timeout(body.run_timeout_ms, defaults.run_timeout),
            heartbeat_timeout: timeout(body.heartbeat_timeout_ms, Duration::ZERO),
        }
    }
}
