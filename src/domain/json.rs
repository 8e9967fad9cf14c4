//! What counts as JSON where no database is asked: payloads and results of direct requests.
//!
//! As PostgreSQL's jsonb has it, but for two bounds that a parser without it needs: at most 127 levels, and numbers
//! that a double can hold in size. Texts are judged and passed on as they are, not in a normal form.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// The content type whose payloads are judged.
pub const MEDIA_TYPE: &str = "application/json";

/// Judges a text.
///
/// # Errors
/// What is wrong with it, as a part of a sentence.
pub fn check(text: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    serde_json::from_str::<Checked>(text)
        .map(|Checked| ())
        .map_err(|error| error.to_string())
}

/// Any value. Every string is read, so that escapes without a character are found.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self, E> {
        if text.contains('\0') {
            return Err(E::custom("\\u0000 can't be text"));
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while let Some(Self) = list.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while let Some((Self, Self)) = map.next_entry()? {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}{}", "[".repeat(levels), "]".repeat(levels))
    }

    #[test]
    fn json_is_taken() {
        for text in [
            "null",
            " [1, -2.5e10, true, \"a\\u00e9\\ud83d\\ude00\", {\"k\": {\"k\": []}}] ",
            "123456789012345678901234567890",
            "{\"a\": 1, \"a\": 2}",
            &nested(127),
        ] {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "nonsense",
            "{",
            "[1,]",
            "{\"a\" 1}",
            "1 2",
            "\"\\u0000\"",
            "{\"\\u0000\": 1}",
            "\"\\ud800\"",
            "\"a\nb\"",
            "1e400",
            "01",
            &nested(128),
            &nested(1_000_000),
        ] {
            assert!(check(text.as_bytes()).is_err(), "{text:.40}");
        }
        assert!(check(b"\"\xff\"").is_err());
    }
}
