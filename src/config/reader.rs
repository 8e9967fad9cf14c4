//! Takes values out of the merged sources one key at a time, and keeps every fault.

use std::collections::BTreeMap;

use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Source};

use super::kinds::Kind;
use super::sources::PREFIX;
use super::{Errors, Fault};

/// The origin of a value that no source gives.
const DEFAULTS: &str = "defaults";

/// One setting, as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Such as `server.grpc`.
    pub key: &'static str,
    /// The value in effect; of a secret only that there is one.
    pub value: String,
    /// The file, environment variable or flag; `defaults` when none gives it.
    pub origin: String,
}

pub(super) struct Reader<'f> {
    figment: &'f Figment,
    environment: &'f [(String, String)],
    entries: BTreeMap<&'static str, Entry>,
    faults: Vec<Fault>,
}

impl<'f> Reader<'f> {
    pub(super) fn new(
        figment: &'f Figment,
        environment: &'f [(String, String)],
        faults: Vec<Fault>,
    ) -> Self {
        Self {
            figment,
            environment,
            entries: BTreeMap::new(),
            faults,
        }
    }

    /// The value of a key. A value that is not of its kind is a fault, and the default stands in for it so
    /// that reading goes on.
    pub(super) fn take<T>(&mut self, key: &'static str, default: T, kind: &Kind<T>) -> T {
        let found = self.figment.find_value(key).ok();
        let origin = found
            .as_ref()
            .map_or_else(|| DEFAULTS.to_owned(), |value| self.origin(value));
        let value = match found {
            None => default,
            Some(value) => match parse(&value, kind) {
                Ok(parsed) => parsed,
                Err(message) => {
                    self.faults.push(Fault {
                        origin: origin.clone(),
                        key: key.to_owned(),
                        message,
                    });
                    default
                }
            },
        };
        self.refuse_single_underscore(key);
        let shown = (kind.show)(&value);
        self.entries.insert(
            key,
            Entry {
                key,
                value: shown,
                origin,
            },
        );
        value
    }

    /// The likeliest slip in a variable's name would else go unseen, as the name of something else.
    fn refuse_single_underscore(&mut self, key: &str) {
        let slip = format!("{PREFIX}{}", key.replace('.', "_").to_uppercase());
        if self.environment.iter().any(|(name, _)| *name == slip) {
            let right = format!("{PREFIX}{}", key.replace('.', "__").to_uppercase());
            self.faults.push(Fault {
                origin: slip,
                key: key.to_owned(),
                message: format!("is set by {right}, with two underscores after the section"),
            });
        }
    }

    /// The key must be given somewhere.
    pub(super) fn require(&mut self, key: &'static str, how: &str) {
        if self.figment.find_value(key).is_err() {
            self.faults.push(Fault {
                origin: DEFAULTS.to_owned(),
                key: key.to_owned(),
                message: how.to_owned(),
            });
        }
    }

    /// A rule between keys, told at the first of them, with where the others stand.
    pub(super) fn relate(&mut self, holds: bool, key: &'static str, message: &str) {
        // A value that is not of its kind was told already, and its stand-in proves nothing.
        let told = self.faults.iter().any(|fault| fault.key == key);
        if !holds && !told {
            let origin = self
                .entries
                .get(key)
                .map_or_else(String::new, |entry| entry.origin.clone());
            self.faults.push(Fault {
                origin,
                key: key.to_owned(),
                message: message.to_owned(),
            });
        }
    }

    /// All that was read, unless there is a fault; keys that nobody has read are faults.
    pub(super) fn finish(mut self) -> Result<Vec<Entry>, Errors> {
        match self.figment.extract::<Dict>() {
            Ok(sections) => {
                for name in sections.keys() {
                    self.refuse_unknown(name);
                }
            }
            Err(error) => self.faults.push(Fault {
                origin: String::new(),
                key: String::new(),
                message: error.to_string(),
            }),
        }
        if self.faults.is_empty() {
            Ok(self.entries.into_values().collect())
        } else {
            Err(Errors(self.faults))
        }
    }

    fn refuse_unknown(&mut self, section: &str) {
        let Ok(found) = self.figment.find_value(section) else {
            return;
        };
        let prefix = format!("{section}.");
        let keys: Vec<&str> = self
            .entries
            .keys()
            .filter_map(|key| key.strip_prefix(&prefix))
            .collect();
        if keys.is_empty() {
            let names = self.sections().join(", ");
            self.unknown(&found, section, &format!("the sections are {names}"));
            return;
        }
        let known = format!("[{section}] has {}", keys.join(", "));
        let Value::Dict(_, values) = &found else {
            let message = format!("is a section with keys; {known}");
            let origin = self.origin(&found);
            self.faults.push(Fault {
                origin,
                key: section.to_owned(),
                message,
            });
            return;
        };
        let strangers: Vec<_> = values
            .iter()
            .filter(|(key, _)| !keys.contains(&key.as_str()))
            .collect();
        for (key, value) in strangers {
            self.unknown(value, &format!("{section}.{key}"), &known);
        }
    }

    fn unknown(&mut self, value: &Value, key: &str, known: &str) {
        // Of a section that is not ours, its first value says where it stands.
        let mut leaf = value;
        while let Value::Dict(_, values) = leaf {
            let Some(first) = values.values().next() else {
                break;
            };
            leaf = first;
        }
        let origin = self.origin(leaf);
        self.faults.push(Fault {
            origin,
            key: key.to_owned(),
            message: format!("is not a known key; {known}"),
        });
    }

    fn sections(&self) -> Vec<&'static str> {
        let mut names: Vec<&str> = self
            .entries
            .keys()
            .filter_map(|key| key.split_once('.'))
            .map(|(section, _)| section)
            .collect();
        names.dedup();
        names
    }

    fn origin(&self, value: &Value) -> String {
        self.figment
            .get_metadata(value.tag())
            .map_or_else(String::new, named)
    }
}

fn named(metadata: &Metadata) -> String {
    match &metadata.source {
        Some(Source::File(path)) => path.display().to_string(),
        _ => metadata.name.to_string(),
    }
}

fn parse<T>(value: &Value, kind: &Kind<T>) -> Result<T, String> {
    let text = match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Bool(_, value) => Some(value.to_string()),
        Value::Num(_, number) => number
            .to_i128()
            .map(|number| number.to_string())
            .or_else(|| number.to_u128().map(|number| number.to_string()))
            .or_else(|| number.to_f64().map(|number| number.to_string())),
        Value::Char(_, character) => Some(character.to_string()),
        Value::Empty(..) | Value::Dict(..) | Value::Array(..) => None,
    };
    let Some(text) = text else {
        return Err("must be a single value".to_owned());
    };
    (kind.parse)(&text).map_err(|expected| {
        if kind.secret {
            expected
        } else {
            format!("is {text:?}: it {expected}")
        }
    })
}
