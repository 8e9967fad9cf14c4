//! What pings prove about one session: plain data, asked and told by its loop.

use std::time::{Duration, Instant};

/// Answers that prove a new session: the first ping follows its welcome at once and the second the first answer.
const PROOF: u32 = 2;

/// The pings of one session.
#[derive(Debug)]
pub struct Liveness {
    window: Duration,
    sent: u64,
    answered: u64,
    answers: u32,
    heard: Instant,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A first answer: ask again at once.
    AskAgain,
    /// The way to the worker is proven.
    Proven,
    /// It answers nothing that was asked.
    Nothing,
}

/// What silence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nothing yet.
    Short,
    /// The last proof is older than half the window: nothing new is sent there.
    Doubtful,
    /// It is older than the window: the worker is lost.
    Lost,
}

impl Liveness {
    /// A session that is welcomed now and lost after a `window` of silence.
    #[must_use]
    pub fn new(window: Duration, now: Instant) -> Self {
        Self {
            window,
            sent: 0,
            answered: 0,
            answers: 0,
            heard: now,
        }
    }

    /// The number of the next ping.
    pub fn ask(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// The worker answered a ping.
    pub fn answer(&mut self, sequence: u64, now: Instant) -> Answer {
        if sequence > self.sent || sequence <= self.answered {
            return Answer::Nothing;
        }
        self.answered = sequence;
        self.answers = self.answers.saturating_add(1);
        self.heard = now;
        if self.answers < PROOF {
            Answer::AskAgain
        } else {
            Answer::Proven
        }
    }

    /// How long it has been silent.
    #[must_use]
    pub fn silence(&self, now: Instant) -> Silence {
        let silent = now.saturating_duration_since(self.heard);
        if silent > self.window {
            Silence::Lost
        } else if silent > self.window / 2 {
            Silence::Doubtful
        } else {
            Silence::Short
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_answers_prove_and_only_answers_do() {
        let (start, window) = (Instant::now(), Duration::from_secs(30));
        let mut liveness = Liveness::new(window, start);
        let first = liveness.ask();
        assert_eq!(
            liveness.answer(first + 1, start),
            Answer::Nothing,
            "never asked"
        );
        assert_eq!(liveness.answer(first, start), Answer::AskAgain);
        assert_eq!(
            liveness.answer(first, start),
            Answer::Nothing,
            "answered before"
        );
        let second = liveness.ask();
        assert_eq!(liveness.answer(second, start), Answer::Proven);
    }

    #[test]
    fn a_proof_ages() {
        let (start, window) = (Instant::now(), Duration::from_secs(30));
        let mut liveness = Liveness::new(window, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(liveness.silence(at(15)), Silence::Short);
        assert_eq!(liveness.silence(at(16)), Silence::Doubtful);
        assert_eq!(liveness.silence(at(31)), Silence::Lost);
        let ping = liveness.ask();
        liveness.answer(ping, at(29));
        assert_eq!(liveness.silence(at(31)), Silence::Short);
    }
}
