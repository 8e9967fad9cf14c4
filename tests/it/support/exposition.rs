//! A strict reader of Prometheus' text format 0.0.4: what it does not know is an error.

use std::collections::{BTreeMap, BTreeSet};

pub type Labels = BTreeMap<String, String>;

/// Bounds and counts of one histogram, and its number of observations.
type Buckets = (Vec<(f64, f64)>, Option<f64>);

/// One family of a page.
#[derive(Debug, Default, PartialEq)]
pub struct Metric {
    pub help: String,
    pub kind: String,
    /// (suffix, labels, value); the suffix is that of a histogram's series.
    pub samples: Vec<(String, Labels, f64)>,
}

impl Metric {
    /// Names of the labels, without that of buckets.
    pub fn labels(&self) -> BTreeSet<String> {
        let labels = self.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        labels.filter(|name| *name != "le").cloned().collect()
    }
}

/// All families by name.
#[derive(Debug, Default)]
pub struct Page(pub BTreeMap<String, Metric>);

impl Page {
    /// Reads a page.
    pub fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line does not end");
        let mut page = Self::default();
        let mut current: Option<String> = None;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && !help.is_empty(), "{line}");
                let metric = Metric {
                    help: help.to_owned(),
                    ..Metric::default()
                };
                let before = page.0.insert(name.to_owned(), metric);
                assert!(before.is_none(), "{name} comes twice");
                current = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(Some(name), current.as_deref(), "{line}");
                let metric = page.0.get_mut(name).unwrap();
                assert!(metric.kind.is_empty() && metric.samples.is_empty());
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                kind.clone_into(&mut metric.kind);
            } else {
                assert!(!line.starts_with('#') && !line.is_empty(), "{line:?}");
                let name = current.as_ref().expect("a sample before its type");
                let metric = page.0.get_mut(name).unwrap();
                metric.samples.push(sample(name, &metric.kind, line));
            }
        }
        for (name, metric) in &page.0 {
            check(name, metric);
        }
        page
    }

    /// Sum of the samples of a counter or gauge whose labels have these values.
    pub fn sum(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        let Some(metric) = self.0.get(name) else {
            return 0.0;
        };
        let fits = |labels: &Labels| {
            let has =
                |(label, value): &(&str, &str)| labels.get(*label).is_some_and(|v| v == value);
            wanted.iter().all(has)
        };
        let samples = metric.samples.iter();
        let samples = samples.filter(|(suffix, labels, _)| suffix.is_empty() && fits(labels));
        samples.map(|(_, _, value)| value).sum()
    }

    /// Observations of a histogram, over all of its series.
    pub fn observations(&self, name: &str) -> f64 {
        let samples = self.0[name].samples.iter();
        let counts = samples.filter(|(suffix, ..)| suffix == "_count");
        counts.map(|(_, _, value)| value).sum()
    }
}

fn is_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(word)
}

fn sample(name: &str, kind: &str, line: &str) -> (String, Labels, f64) {
    let rest = line
        .strip_prefix(name)
        .unwrap_or_else(|| panic!("{line} stands among those of {name}"));
    let end = rest.find(['{', ' ']).unwrap();
    let (suffix, rest) = rest.split_at(end);
    let suffixes: &[&str] = if kind == "histogram" {
        &["_bucket", "_sum", "_count"]
    } else {
        &[""]
    };
    assert!(suffixes.contains(&suffix), "{line}");
    let (labels, value) = match rest.strip_prefix('{') {
        None => (Labels::new(), rest),
        Some(rest) => labels(rest),
    };
    let value = value.strip_prefix(' ').unwrap();
    let value = match value {
        "+Inf" => f64::INFINITY,
        _ => {
            let known = |c: char| c.is_ascii_digit() || ".-e".contains(c);
            assert!(value.chars().all(known), "{line}");
            value.parse().unwrap()
        }
    };
    (suffix.to_owned(), labels, value)
}

/// Labels behind an opening brace, and what follows the closing one.
fn labels(mut rest: &str) -> (Labels, &str) {
    let mut found = Labels::new();
    loop {
        let (name, behind) = rest.split_once("=\"").unwrap();
        assert!(is_name(name), "{rest}");
        let (mut value, mut chars) = (String::new(), behind.char_indices());
        let end = loop {
            match chars.next().expect("a label that does not end") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    c => panic!("\\{c} is no escape"),
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(
            found.insert(name.to_owned(), value).is_none(),
            "{name} twice"
        );
        let behind = &behind[end + 1..];
        match behind.strip_prefix(',') {
            Some(more) => rest = more,
            None => return (found, behind.strip_prefix('}').unwrap()),
        }
    }
}

/// What must hold of a family as a whole.
fn check(name: &str, metric: &Metric) {
    assert!(!metric.kind.is_empty(), "{name} has no type");
    assert!(!metric.samples.is_empty(), "{name} has no sample");
    assert_eq!(name.ends_with("_total"), metric.kind == "counter", "{name}");
    let mut seen = BTreeSet::new();
    let mut series: BTreeMap<Labels, Buckets> = BTreeMap::new();
    for (suffix, labels, value) in &metric.samples {
        let key = format!("{suffix} {labels:?}");
        assert!(seen.insert(key), "{name}: {labels:?} comes twice");
        assert!(*value >= 0.0, "{name}: {value}");
        let mut labels = labels.clone();
        let le = labels.remove("le");
        assert_eq!(le.is_some(), suffix == "_bucket", "{name}");
        let (buckets, count) = series.entry(labels).or_default();
        match suffix.as_str() {
            "_bucket" => {
                let le = le.unwrap();
                let le = if le == "+Inf" {
                    f64::INFINITY
                } else {
                    le.parse().unwrap()
                };
                buckets.push((le, *value));
            }
            "_count" => *count = Some(*value),
            _ => {}
        }
    }
    if metric.kind == "histogram" {
        for (labels, (buckets, count)) in series {
            let grows = buckets
                .windows(2)
                .all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
            assert!(grows, "{name} {labels:?}: {buckets:?}");
            let last = buckets.last().unwrap();
            assert!(
                last.0.is_infinite() && Some(last.1) == count,
                "{name} {labels:?}"
            );
        }
    }
}
