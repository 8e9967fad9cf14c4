//! Writes a message, field by field. What has its default is left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::{Fields, JSON, Malformed, Value};

/// The text of an object up to the field that is written next.
pub(super) struct Writer {
    out: String,
}

impl Writer {
    pub(super) fn write(fields: impl FnOnce(&mut Self)) -> String {
        let mut writer = Self { out: String::new() };
        writer.object(fields);
        writer.out
    }

    fn object(&mut self, fields: impl FnOnce(&mut Self)) {
        self.out.push('{');
        fields(self);
        self.out.push('}');
    }

    /// Names are those of the protocol: nothing in them needs an escape.
    fn name(&mut self, name: &str) {
        // No value ends in an opening brace, so one means that this is the first field.
        if !self.out.ends_with('{') {
            self.out.push(',');
        }
        self.out.push('"');
        self.out.push_str(name);
        self.out.push_str("\":");
    }
}

impl Fields for Writer {
    fn value<V: Value>(&mut self, name: &'static str, value: &mut V) {
        if *value != V::default() {
            self.name(name);
            value.write(&mut self.out);
        }
    }

    fn word(&mut self, name: &'static str, number: &mut i32, words: &'static [&'static str]) {
        let word = usize::try_from(*number)
            .ok()
            .and_then(|place| words.get(place));
        if let Some(word) = word.filter(|word| !word.is_empty()) {
            self.name(name);
            super::value::quote(word, &mut self.out);
        }
    }

    fn body(&mut self, payload: &mut Bytes, content_type: &mut String) {
        self.value("content_type", content_type);
        if let Some(json) = inline(payload, content_type) {
            self.name("json");
            self.out.push_str(json);
        } else if !payload.is_empty() {
            self.name("payload");
            self.out.push('"');
            STANDARD.encode_string(payload, &mut self.out);
            self.out.push('"');
        }
    }

    fn list<T: Default>(
        &mut self,
        name: &'static str,
        list: &mut Vec<T>,
        fields: impl Fn(&mut Self, &mut T),
    ) {
        if list.is_empty() {
            return;
        }
        self.name(name);
        for (index, message) in list.iter_mut().enumerate() {
            self.out.push(if index == 0 { '[' } else { ',' });
            self.object(|writer| fields(writer, message));
        }
        self.out.push(']');
    }

    fn arm<T: Default>(
        &mut self,
        name: &'static str,
        message: &mut Option<T>,
        fields: impl FnOnce(&mut Self, &mut T),
    ) {
        if let Some(message) = message {
            self.name(name);
            self.object(|writer| fields(writer, message));
        }
    }

    fn refuse(&mut self, _: &'static str, _: &str) {}

    fn contained(&mut self, part: impl FnOnce(&mut Self)) -> Option<Malformed> {
        part(self);
        None
    }
}

/// The payload as JSON that may stand in a frame. One that is not what its content type says would break the whole
/// frame, and space around it would not survive: such a payload goes as bytes.
fn inline<'p>(payload: &'p Bytes, content_type: &str) -> Option<&'p str> {
    let json: &RawValue = (content_type == JSON)
        .then(|| serde_json::from_slice(payload).ok())
        .flatten()?;
    (json.get().len() == payload.len()).then(|| json.get())
}

/// Bytes that a payload adds to a frame.
pub(super) fn body_bytes(payload: &Bytes, content_type: &str) -> usize {
    if payload.is_empty() {
        0
    } else if inline(payload, content_type).is_some() {
        ",\"json\":".len() + payload.len()
    } else {
        ",\"payload\":\"\"".len() + payload.len().div_ceil(3) * 4
    }
}
