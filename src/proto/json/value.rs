//! How a field's value looks in JSON.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::value::RawValue;

/// The value of a field. Its default is what an absent field means.
pub(super) trait Value: Default + PartialEq {
    /// Reads JSON that is not null; the error says what it must be.
    fn read(json: &RawValue) -> Result<Self, &'static str>;

    fn write(&self, out: &mut String);
}

/// Writes a string with its quotes.
pub(super) fn quote(text: &str, out: &mut String) {
    // It fails for keys that are no strings only.
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

impl Value for String {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        serde_json::from_str(json.get()).map_err(|_| "must be a string of Unicode characters")
    }

    fn write(&self, out: &mut String) {
        quote(self, out);
    }
}

/// A token, which is opaque text.
impl Value for Bytes {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        String::read(json).map(Self::from)
    }

    fn write(&self, out: &mut String) {
        quote(&String::from_utf8_lossy(self), out);
    }
}

/// The digits of a number, plain or in a string.
fn digits(json: &RawValue) -> Cow<'_, str> {
    let text = json.get();
    if text.starts_with('"') {
        serde_json::from_str(text).map_or(Cow::Borrowed(text), Cow::Owned)
    } else {
        Cow::Borrowed(text)
    }
}

impl Value for u32 {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        let number = digits(json).parse();
        number.map_err(|_| "must be a whole number from 0 to 4294967295")
    }

    fn write(&self, out: &mut String) {
        write!(out, "{self}").ok();
    }
}

impl Value for u64 {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        let number = digits(json).parse();
        number.map_err(|_| "must be a whole number from 0 to 2^64 - 1, better in a string")
    }

    fn write(&self, out: &mut String) {
        write!(out, "\"{self}\"").ok();
    }
}

impl Value for i64 {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        let number = digits(json).parse();
        number.map_err(|_| "must be a whole number of 64 bits, better in a string")
    }

    fn write(&self, out: &mut String) {
        write!(out, "\"{self}\"").ok();
    }
}

impl<V: Value> Value for Option<V> {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        V::read(json).map(Some)
    }

    fn write(&self, out: &mut String) {
        if let Some(value) = self {
            value.write(out);
        }
    }
}

impl<V: Value> Value for Vec<V> {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        let items: Vec<&RawValue> =
            serde_json::from_str(json.get()).map_err(|_| "must be a list")?;
        items.into_iter().map(V::read).collect()
    }

    fn write(&self, out: &mut String) {
        for (index, value) in self.iter().enumerate() {
            out.push(if index == 0 { '[' } else { ',' });
            value.write(out);
        }
        out.push(']');
    }
}

impl Value for HashMap<String, String> {
    fn read(json: &RawValue) -> Result<Self, &'static str> {
        serde_json::from_str(json.get()).map_err(|_| "must be an object of strings")
    }

    fn write(&self, out: &mut String) {
        for (index, (name, value)) in self.iter().enumerate() {
            out.push(if index == 0 { '{' } else { ',' });
            quote(name, out);
            out.push(':');
            quote(value, out);
        }
        out.push('}');
    }
}
