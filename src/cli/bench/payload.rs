//! Payloads that say which task they belong to, and show damage.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// What a payload says, in the order and spacing in which PostgreSQL stores JSON.
#[derive(Debug, Deserialize)]
pub(super) struct Payload {
    /// The task's number in its run.
    #[serde(rename = "i")]
    pub(super) number: u64,
    /// Filler, a function of the number.
    #[serde(rename = "p")]
    filler: String,
    /// What the handler is told: a time, or a duration in milliseconds.
    #[serde(rename = "t")]
    pub(super) told: i64,
}

/// A payload of `bytes` bytes, or a little more where number and time alone take more.
pub(super) fn make(number: u64, told: i64, bytes: u32) -> String {
    let bare = spell(number, "", told);
    let room = (bytes as usize).saturating_sub(bare.len());
    spell(number, &filler(number, room), told)
}

/// Reads a payload that was made with so many bytes, and fails when anything in it has changed.
pub(super) fn check(payload: &[u8], bytes: u32) -> anyhow::Result<Payload> {
    let read: Payload = serde_json::from_slice(payload).context("a payload is not ours")?;
    if payload != make(read.number, read.told, bytes).as_bytes()
        || read.filler != filler(read.number, read.filler.len())
    {
        bail!("the payload of task {} is damaged", read.number);
    }
    Ok(read)
}

fn spell(number: u64, filler: &str, told: i64) -> String {
    format!(r#"{{"i": {number}, "p": "{filler}", "t": {told}}}"#)
}

/// Hexadecimal digits that differ from number to number and hardly compress.
fn filler(number: u64, length: usize) -> String {
    let mut digits = String::with_capacity(length + 16);
    let mut random = fastrand::Rng::with_seed(number);
    while digits.len() < length {
        // Writing to a string never fails.
        let _written = write!(digits, "{:016x}", random.u64(..));
    }
    digits.truncate(length);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_shows_and_the_size_is_kept() {
        let payload = make(7, 1_700_000_000_000_000, 200);
        assert_eq!(payload.len(), 200);
        assert_eq!(check(payload.as_bytes(), 200).unwrap().number, 7);
        assert!(check(payload.as_bytes(), 201).is_err());
        assert!(check(payload.replace("\"i\": 7", "\"i\": 8").as_bytes(), 200).is_err());
        assert!(make(u64::MAX, i64::MIN, 32).len() > 32, "nothing is cut");
    }
}
