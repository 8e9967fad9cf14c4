//! Durations as people write them.

use std::time::Duration;

use super::Error;

/// Milliseconds of a field that takes a duration such as `250ms`, `5m` or `1h 30m`, or `0`. A negative one is read
/// too: the database refuses it, as it does from every door.
pub fn milliseconds(field: &str, text: &str) -> Result<i64, Error> {
    let (sign, magnitude) = match text.trim().strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.trim()),
    };
    let read = humantime::parse_duration(magnitude).map_err(|_| unreadable(field))?;
    Ok(sign * i64::try_from(read.as_millis()).unwrap_or(i64::MAX))
}

/// A time-out of a call.
pub fn span(field: &str, text: &str) -> Result<Duration, Error> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        let message = format!("{field} must be a duration such as 500ms, 30s or 1m.");
        Error::invalid_value(field, message)
    })
}

/// The refusal of the field's own rule.
fn unreadable(field: &str) -> Error {
    let code = if field == "delay" { "FP-005" } else { "FP-007" };
    let message = format!("{field} must be a duration such as 250ms, 5m or 2h.");
    Error::new(code, message).at(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_sign() {
        assert_eq!(milliseconds("delay", "5m").unwrap(), 300_000);
        assert_eq!(milliseconds("delay", " 1h 30m").unwrap(), 5_400_000);
        assert_eq!(milliseconds("delay", "0").unwrap(), 0);
        assert_eq!(milliseconds("delay", "-250ms").unwrap(), -250);
        assert_eq!(
            milliseconds("delay", "500000000000000y").map_err(|error| error.code.code),
            Err("FP-005")
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_the_rule_of_the_field() {
        for (field, code) in [("delay", "FP-005"), ("run_timeout", "FP-007")] {
            for text in ["", "soon", "5", "--5m", "5 parsecs"] {
                let error = milliseconds(field, text).unwrap_err();
                assert_eq!(
                    (error.code.code, error.field.as_deref()),
                    (code, Some(field)),
                    "{text}"
                );
            }
        }
    }
}
