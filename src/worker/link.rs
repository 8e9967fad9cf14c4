//! Whom to ask for a session, and when: dispatchers in turn, backoff between attempts.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::dial::{Connection, Dispatcher, denial, describe};
use super::held::Held;
use super::{Error, Options};
use crate::proto::worker::Register;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A session that lasts longer is no failed attempt: one in a second is no hot loop.
const LASTING: Duration = Duration::from_secs(1);

type Attempt = Pin<Box<dyn Future<Output = Result<Connection, Status>> + Send>>;

pub(super) struct Link {
    dispatchers: Vec<Dispatcher>,
    /// Says everything but what the worker holds at the moment.
    register: Register,
    max_frame_bytes: usize,
    turn: usize,
    /// The one under way.
    attempt: Option<Attempt>,
    next_attempt: Instant,
    /// Attempts since the last session that lasted.
    failures: u32,
    /// Where the last session was: tried last, as it was lost or left.
    peer: Option<SocketAddr>,
    opened: Instant,
    /// The trouble that was logged last, so that each is logged once.
    told: Option<String>,
}

impl Link {
    pub(super) fn new(options: &Options, register: Register) -> Result<Self, Error> {
        let urls = options.connect.iter();
        let dispatchers: Result<_, _> = urls.map(|url| Dispatcher::new(url)).collect();
        Ok(Self {
            dispatchers: dispatchers?,
            register,
            max_frame_bytes: options.max_frame_bytes,
            turn: 0,
            attempt: None,
            next_attempt: Instant::now(),
            failures: 0,
            peer: None,
            opened: Instant::now(),
            told: None,
        })
    }

    /// Tries until a dispatcher says Welcome; fails on a final denial only. Cancel safe: an
    /// attempt under way goes on at the next call.
    pub(super) async fn open(&mut self, held: &mut Held) -> Result<Connection, Error> {
        loop {
            let attempt = match &mut self.attempt {
                Some(attempt) => attempt,
                None => {
                    tokio::time::sleep_until(self.next_attempt).await;
                    let attempt = self.start(held)?;
                    self.attempt.insert(attempt)
                }
            };
            let ended = attempt.await;
            self.attempt = None;
            match ended {
                Ok(connection) => {
                    self.told = None;
                    self.opened = Instant::now();
                    self.peer = Some(connection.peer);
                    return Ok(connection);
                }
                Err(status) => {
                    held.not_named();
                    self.failed(&describe(&denial(status)?));
                }
            }
        }
    }

    fn start(&self, held: &mut Held) -> Result<Attempt, Error> {
        let dispatcher = self.dispatchers.get(self.turn % self.dispatchers.len());
        let dispatcher = dispatcher.ok_or(Error::Options("no dispatcher address"))?;
        tracing::debug!(dispatcher = %dispatcher.uri(), "connecting");
        let register = Register {
            resume: held.name(),
            ..self.register.clone()
        };
        let attempt = dispatcher.clone();
        Ok(Box::pin(attempt.open(
            register,
            self.max_frame_bytes,
            self.peer,
        )))
    }

    /// The session was lost: the next one goes to the next dispatcher.
    pub(super) fn lost(&mut self, why: &str) {
        self.forgive();
        self.failed(why);
    }

    /// The dispatcher sends its workers elsewhere. A session that has lasted longer than the pause
    /// that is due has waited enough.
    pub(super) fn sent_away(&mut self) {
        self.forgive();
        tracing::info!("the dispatcher sends its workers elsewhere");
        self.next_attempt = self.opened + pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.turn = self.turn.wrapping_add(1);
    }

    /// A session that ends at once counts as a failed attempt, or two dispatchers that send each
    /// other's workers away would be a hot loop.
    fn forgive(&mut self) {
        if self.opened.elapsed() > LASTING {
            self.failures = 0;
        }
    }

    fn failed(&mut self, why: &str) {
        let pause = pause(self.failures);
        self.next_attempt = Instant::now() + pause;
        self.failures = self.failures.saturating_add(1);
        self.turn = self.turn.wrapping_add(1);
        if self.told.as_deref() == Some(why) {
            tracing::debug!(reason = why, ?pause, "no dispatcher");
        } else {
            tracing::warn!(reason = why, ?pause, "no dispatcher; trying on");
            self.told = Some(why.to_owned());
        }
    }
}

/// Doubles from 100 ms to 5 s; half of it is jitter, so that a restart is no stampede.
fn pause(failures: u32) -> Duration {
    let full = FIRST_PAUSE
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_PAUSE);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}
