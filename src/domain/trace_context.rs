//! Trace contexts in the W3C's form: which trace a task belongs to, and below which span.

use std::fmt;

/// Characters of a traceparent of version 00.
const LENGTH: usize = 55;

/// The flag that this trace is recorded.
const SAMPLED: u8 = 1;

/// A traceparent that is valid by the W3C's recommendation *Trace Context*. Displayed, it is one of version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Names the trace; never 0.
    pub trace_id: u128,
    /// Names the span that the next ones are children of; never 0.
    pub parent_id: u64,
    /// Bits that say how the trace is recorded.
    pub flags: u8,
}

impl TraceParent {
    /// Reads a traceparent; none where the recommendation has it ignored. Of a later version it knows what version 00
    /// has, as the recommendation asks: the ids, and whether the trace is recorded.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.splitn(5, '-');
        let mut field = |digits| lower_hex(fields.next()?, digits);
        let version = field(2)?;
        let (trace_id, parent_id) = (field(32)?, u64::try_from(field(16)?).ok()?);
        let flags = u8::try_from(field(2)?).ok()?;
        let flags = match version {
            0 if text.len() == LENGTH => flags,
            // All ones are no version.
            0 | 0xff => return None,
            _ => flags & SAMPLED,
        };
        (trace_id != 0 && parent_id != 0).then_some(Self {
            trace_id,
            parent_id,
            flags,
        })
    }

    /// What the headers of this name say together: several are as good as none.
    #[must_use]
    pub fn of_headers<'h>(mut values: impl Iterator<Item = &'h [u8]>) -> Option<Self> {
        let only = values.next().filter(|_| values.next().is_none())?;
        Self::parse(std::str::from_utf8(only).ok()?)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id, self.parent_id, self.flags
        )
    }
}

/// So many digits of a number; upper case is none of them.
fn lower_hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let fits = text.len() == digits && text.bytes().all(is_digit);
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_recommendation_is_read() {
        let read = TraceParent::parse(EXAMPLE).unwrap();
        assert_eq!(read.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((read.parent_id, read.flags), (0x00f0_67aa_0ba9_02b7, 1));
        assert_eq!(read.to_string(), EXAMPLE);
    }

    #[test]
    fn what_the_recommendation_calls_invalid_is_ignored() {
        for invalid in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-000f067aa0ba902b7-01",
            "+0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn of_a_later_version_the_known_part_is_taken() {
        for later in [
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-what-else",
        ] {
            assert_eq!(
                TraceParent::parse(later).unwrap().to_string(),
                EXAMPLE,
                "{later}"
            );
        }
    }

    #[test]
    fn several_headers_are_as_good_as_none() {
        let of = |values: &[&'static str]| {
            TraceParent::of_headers(values.iter().map(|value| value.as_bytes()))
        };
        assert_eq!(of(&[EXAMPLE]).unwrap().to_string(), EXAMPLE);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[EXAMPLE, EXAMPLE]), None);
        assert_eq!(TraceParent::of_headers([&b"\xff"[..]].into_iter()), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(trace_id in 1..=u128::MAX, parent_id in 1..=u64::MAX, flags: u8) {
            let context = TraceParent { trace_id, parent_id, flags };
            let text = context.to_string();
            prop_assert_eq!(text.len(), LENGTH);
            prop_assert_eq!(TraceParent::parse(&text), Some(context));
        }

        #[test]
        fn what_is_read_as_version_00_is_what_was_written(text in "(0[01]|ff|[0-9a-f]{2})-[0-9a-f]{31,33}-[0-9a-f]{15,17}-[0-9a-fA-F]{1,3}(-.{0,9})?") {
            if let Some(read) = TraceParent::parse(&text) {
                let written = read.to_string();
                // Ids stand as they stood; the rest is judged above.
                prop_assert_eq!(written.get(3..52), text.get(3..52));
                prop_assert!(!text.starts_with("00") || written == text);
            }
        }

        #[test]
        fn no_text_is_too_odd(text in ".{0,80}") {
            if let Some(read) = TraceParent::parse(&text) {
                prop_assert_eq!(TraceParent::parse(&read.to_string()), Some(read));
            }
        }

        #[test]
        fn one_wrong_character_is_seen(place in 0..LENGTH, wrong in "[^0-9a-f-]") {
            let mut text = EXAMPLE.to_owned();
            text.replace_range(place..=place, &wrong);
            prop_assert_eq!(TraceParent::parse(&text), None);
        }
    }
}
