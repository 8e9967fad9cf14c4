//! Reads a message, field by field.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::{Fields, JSON, Malformed, Value};

/// The members of one object, and the first fault that was found in it. Values are looked at as their fields come up;
/// until then they are text, however large or deep.
pub(super) struct Reader<'j> {
    place: String,
    members: HashMap<String, &'j RawValue>,
    fault: Option<Malformed>,
}

impl<'j> Reader<'j> {
    /// Reads the whole of a message.
    pub(super) fn read(text: &'j str, fields: impl FnOnce(&mut Self)) -> Result<(), Malformed> {
        let members = serde_json::from_str(text).map_err(|error| Malformed {
            place: String::new(),
            why: format!("not a JSON object: {error}"),
        })?;
        let mut reader = Reader {
            place: String::new(),
            members,
            fault: None,
        };
        fields(&mut reader);
        reader.fault.map_or(Ok(()), Err)
    }

    /// A member that is there; null is as good as absent.
    fn get(&self, name: &str) -> Option<&'j RawValue> {
        let member = self.members.get(name).copied();
        member.filter(|json| json.get() != "null")
    }

    fn place(&self, name: &str) -> String {
        if self.place.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.place)
        }
    }

    fn inside<T: Default>(
        &mut self,
        place: String,
        json: &'j RawValue,
        fields: impl FnOnce(&mut Self, &mut T),
    ) -> Option<T> {
        let Ok(members) = serde_json::from_str(json.get()) else {
            let why = "must be an object".to_owned();
            self.fault.get_or_insert(Malformed { place, why });
            return None;
        };
        let mut inner = Reader {
            place,
            members,
            fault: None,
        };
        let mut message = T::default();
        fields(&mut inner, &mut message);
        if self.fault.is_none() {
            self.fault = inner.fault;
        }
        Some(message)
    }
}

impl Fields for Reader<'_> {
    fn value<V: Value>(&mut self, name: &'static str, value: &mut V) {
        match self.get(name).map(V::read) {
            Some(Ok(read)) => *value = read,
            Some(Err(why)) => self.refuse(name, why),
            None => {}
        }
    }

    fn word(&mut self, name: &'static str, number: &mut i32, words: &'static [&'static str]) {
        let Some(json) = self.get(name) else { return };
        let word = String::read(json).unwrap_or_default();
        let place = words.iter().position(|known| *known == word);
        match place.and_then(|place| i32::try_from(place).ok()) {
            Some(found) if found > 0 => *number = found,
            _ => self.refuse(name, &format!("must be one of{}", words.join(" "))),
        }
    }

    fn body(&mut self, payload: &mut Bytes, content_type: &mut String) {
        self.value("content_type", content_type);
        let encoded = self.get("payload");
        // Here null is a payload like any other.
        let json = self.members.get("json").copied();
        match (json, encoded) {
            (None, None) => {}
            (Some(_), Some(_)) => self.refuse("json", "stands beside payload"),
            (Some(_), None) if !content_type.is_empty() && content_type != JSON => {
                self.refuse("json", "stands beside a content type that is not JSON");
            }
            (Some(json), None) => {
                *payload = Bytes::copy_from_slice(json.get().as_bytes());
                JSON.clone_into(content_type);
            }
            (None, Some(encoded)) => {
                let decoded = String::read(encoded).ok();
                match decoded.and_then(|text| STANDARD.decode(text).ok()) {
                    Some(bytes) => *payload = bytes.into(),
                    None => self.refuse("payload", "must be base64, padded"),
                }
            }
        }
    }

    fn list<T: Default>(
        &mut self,
        name: &'static str,
        list: &mut Vec<T>,
        fields: impl Fn(&mut Self, &mut T),
    ) {
        let Some(json) = self.get(name) else { return };
        let Ok(items) = serde_json::from_str::<Vec<_>>(json.get()) else {
            return self.refuse(name, "must be a list");
        };
        for (index, item) in items.into_iter().enumerate() {
            let place = format!("{}[{index}]", self.place(name));
            list.extend(self.inside(place, item, &fields));
            if self.fault.is_some() {
                return;
            }
        }
    }

    fn arm<T: Default>(
        &mut self,
        name: &'static str,
        message: &mut Option<T>,
        fields: impl FnOnce(&mut Self, &mut T),
    ) {
        if let Some(json) = self.get(name) {
            *message = self.inside(self.place(name), json, fields);
        }
    }

    fn refuse(&mut self, name: &'static str, why: &str) {
        let place = self.place(name);
        let why = why.to_owned();
        self.fault.get_or_insert(Malformed { place, why });
    }

    fn contained(&mut self, part: impl FnOnce(&mut Self)) -> Option<Malformed> {
        let before = self.fault.take();
        part(self);
        let found = self.fault.take();
        self.fault = before;
        found
    }
}
