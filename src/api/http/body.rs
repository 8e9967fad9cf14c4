//! Takes the body of an enqueue apart without judging the values in it.
//!
//! The payload goes to PostgreSQL as the bytes that came in, so that one judge decides what JSON it takes, whatever
//! the door: numbers of any size, lone surrogates, duplicate keys, invalid UTF-8, nesting of any depth. A general
//! parser would have its own opinion on each of these.

use bytes::Bytes;

use crate::api::Error;

/// One object: names and the raw text of their values, in order.
pub(super) type Members = Vec<(String, Bytes)>;

/// The objects of a request, and whether they came as a list.
pub(super) struct Objects {
    pub(super) objects: Vec<Members>,
    pub(super) is_list: bool,
}

/// Splits an object, or a list of objects.
pub(super) fn split(body: &Bytes) -> Result<Objects, Error> {
    let mut scanner = Scanner { body, at: 0 };
    let is_list = scanner.next_is(b'[');
    let objects = if is_list {
        scanner.list()?
    } else {
        vec![scanner.object()?]
    };
    scanner.skip_space();
    if scanner.at < body.len() {
        return Err(scanner.expected("the end of the body"));
    }
    Ok(Objects { objects, is_list })
}

struct Scanner<'b> {
    body: &'b Bytes,
    at: usize,
}

impl Scanner<'_> {
    fn list(&mut self) -> Result<Vec<Members>, Error> {
        let mut objects = Vec::new();
        self.take(b'[', "a list")?;
        if self.next_is(b']') {
            self.at += 1;
            return Ok(objects);
        }
        loop {
            objects.push(self.object()?);
            if !self.goes_on(b']', "`,` or `]`")? {
                return Ok(objects);
            }
        }
    }

    fn object(&mut self) -> Result<Members, Error> {
        let mut members = Members::new();
        self.take(b'{', "an object")?;
        if self.next_is(b'}') {
            self.at += 1;
            return Ok(members);
        }
        loop {
            self.skip_space();
            let start = self.at;
            if !self.next_is(b'"') {
                return Err(self.expected("the name of a field"));
            }
            self.string()?;
            let name = serde_json::from_slice(&self.body.slice(start..self.at))
                .map_err(|_| self.expected("the name of a field before this"))?;
            self.take(b':', "`:`")?;
            let value = self.value()?;
            members.push((name, value));
            if !self.goes_on(b'}', "`,` or `}`")? {
                return Ok(members);
            }
        }
    }

    /// Finds a value's end by its brackets and quotes alone.
    fn value(&mut self) -> Result<Bytes, Error> {
        self.skip_space();
        let start = self.at;
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => self.string()?,
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b',' | b']' | b'}' if depth == 0 => break,
                b']' | b'}' => {
                    depth -= 1;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
        let value = self.body.slice(start..self.at);
        let trimmed = value.trim_ascii_end().len();
        if depth > 0 || trimmed == 0 {
            return Err(self.expected("a value"));
        }
        Ok(value.slice(..trimmed))
    }

    fn string(&mut self) -> Result<(), Error> {
        self.at += 1;
        while let Some(byte) = self.peek() {
            match byte {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => self.at += 1,
            }
        }
        self.at = self.body.len();
        Err(self.expected("the end of a string"))
    }

    /// Whether a comma follows, rather than the end.
    fn goes_on(&mut self, end: u8, what: &str) -> Result<bool, Error> {
        if self.next_is(b',') {
            self.at += 1;
            return Ok(true);
        }
        self.take(end, what)?;
        Ok(false)
    }

    fn take(&mut self, byte: u8, what: &str) -> Result<(), Error> {
        if !self.next_is(byte) {
            return Err(self.expected(what));
        }
        self.at += 1;
        Ok(())
    }

    fn next_is(&mut self, byte: u8) -> bool {
        self.skip_space();
        self.peek() == Some(byte)
    }

    fn skip_space(&mut self) {
        while self
            .peek()
            .is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
        {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn expected(&self, what: &str) -> Error {
        Error::invalid_body(format!(
            "the body is not a JSON object or a list of them: {what} was expected at byte {}.",
            self.at
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(body: &'static [u8]) -> Vec<(String, Vec<u8>)> {
        let mut split = split(&Bytes::from_static(body)).unwrap();
        let members = split.objects.remove(0);
        members
            .into_iter()
            .map(|(name, value)| (name, value.to_vec()))
            .collect()
    }

    #[test]
    fn values_are_handed_on_byte_for_byte() {
        for value in [
            &b"1e400"[..],
            b"nonsense and more",
            br#""a \" \u0000 \ud800 , } ] ""#,
            b"\"\xff\xfe\"",
            br#"{"a": 1, "a": [2, {"b": "]"}]}"#,
            b"[1, 2}",
        ] {
            let body = [b"{ \"x\" : 1, \"payload\": ", value, b" \n, \"y\":\"\" } "].concat();
            let split = split(&Bytes::from(body)).unwrap();
            let members = &split.objects[0];
            assert_eq!(members[1].1.as_ref(), value);
            assert_eq!(
                (members[2].0.as_str(), members[2].1.as_ref()),
                ("y", &b"\"\""[..])
            );
        }
    }

    #[test]
    fn nesting_has_no_limit_here() {
        let deep = [vec![b'['; 1_000_000], vec![b']'; 1_000_000]].concat();
        let body = [b"{\"payload\":", deep.as_slice(), b"}"].concat();
        assert_eq!(split(&Bytes::from(body)).unwrap().objects[0][0].1, deep);
    }

    #[test]
    fn names_are_read_as_json_strings_and_empty_objects_are_objects() {
        assert_eq!(values(br#"{"\u0061": 1}"#), [("a".into(), b"1".to_vec())]);
        assert_eq!(values(b" {} "), []);
        assert_eq!(split(&Bytes::from_static(b"[]")).unwrap().objects.len(), 0);
        let list = split(&Bytes::from_static(b"[{}, {\"a\":1}]")).unwrap();
        assert!(list.is_list);
        assert_eq!(list.objects.len(), 2);
    }

    #[test]
    fn anything_but_objects_is_refused_and_never_panics() {
        for body in [
            "",
            " ",
            "null",
            "1",
            "\"",
            "\"a\"",
            "[1]",
            "[",
            "[{}",
            "[{},",
            "[{},]",
            "{",
            "{\"",
            "{\"a",
            "{\"a\\",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":}",
            "{\"a\":,}",
            "{\"a\":1,}",
            "{\"a\":[}",
            "{\"a\":1]",
            "{} {}",
            "{\"\\ud800\":1}",
            "{a:1}",
            "{\"a\":\"\\",
        ] {
            let error = split(&Bytes::from(body)).err();
            assert_eq!(error.map(|error| error.code.code), Some("FP-101"), "{body}");
        }
    }
}
