//! Keeps the layout: who may import whom, how long a file may be, where SQL may stand, and that
//! the documents name what is there.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use source::{Source, files, root};

/// Rows of modules from top to bottom; a module imports only from rows below its own.
const ROWS: &[&[&str]] = &[
    &["main"],
    &["cli"],
    &["server"],
    &["config"],
    &["api", "transport"],
    &["upkeep"],
    &["dispatch"],
    &["store", "fleet", "auth", "worker", "embedded"],
    &["telemetry"],
    &["domain", "outbound", "proto"],
];

const LONGEST_FILE: usize = 400;
/// Scenarios share their set-up with their neighbours, so their files may be longer.
const LONGEST_TEST_FILE: usize = 800;
const LONGEST_MAP: usize = 250;

fn sources(dir: &str) -> impl Iterator<Item = Source> {
    files(dir, "rs").into_iter().map(|path| Source::read(&path))
}

/// What the product is compiled from: no tests.
fn product() -> impl Iterator<Item = Source> {
    sources("src")
        .filter(|file| !file.path.ends_with("/tests.rs"))
        .map(Source::without_tests)
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Fails with the whole list at once.
fn assert_none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}\n", broken.join("\n  "));
}

fn row(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The identifier that `text` begins with, if any.
fn identifier(text: &str) -> &str {
    let end = text
        .bytes()
        .position(|byte| !is_word(byte))
        .unwrap_or(text.len());
    &text[..end]
}

/// First segments behind a path prefix: one, or those of a braced list.
fn segments(rest: &str) -> Vec<&str> {
    let Some(list) = rest.strip_prefix('{') else {
        return vec![identifier(rest)];
    };
    let (mut depth, mut fresh, mut found) = (1, true, Vec::new());
    for (offset, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 1 => fresh = true,
            _ if fresh && is_word(byte) => {
                fresh = false;
                found.push(identifier(&list[offset..]));
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// Every top module that a file names through the crate's root, with the offset of the path.
fn imports(file: &Source) -> Vec<(usize, &str)> {
    // From src/store/claim.rs two steps up lead to the root as well.
    let up = "super::".repeat(file.module().len());
    let mut found = Vec::new();
    for prefix in ["crate::", "fencepost::", up.as_str()] {
        for (offset, _) in file.code.match_indices(prefix) {
            let before = file.code[..offset].bytes().next_back();
            if before.is_some_and(|byte| is_word(byte) || byte == b':') {
                continue;
            }
            let rest = &file.code[offset + prefix.len()..];
            found.extend(segments(rest).into_iter().map(|name| (offset, name)));
        }
    }
    found.retain(|(_, name)| row(name).is_some());
    found
}

#[test]
fn imports_go_down_only() {
    let mut broken = Vec::new();
    for file in product().filter(|file| file.path != "src/lib.rs") {
        let own = file.module()[0].to_owned();
        let Some(own_row) = row(&own) else {
            broken.push(format!(
                "{}: module `{own}` stands in no row of the table",
                file.path
            ));
            continue;
        };
        for (offset, name) in imports(&file) {
            if name != own && row(name).is_some_and(|other| other <= own_row) {
                broken.push(format!("{}: `{own}` imports `{name}`", file.place(offset)));
            }
        }
    }
    assert_none("a module imports only from rows below its own", &broken);
}

#[test]
fn grouped_and_relative_imports_are_seen() {
    let file = |path: &str, code: &str| Source {
        path: path.to_owned(),
        lines: 1,
        code: code.to_owned(),
        literals: Vec::new(),
    };
    let names = |file: &Source| {
        imports(file)
            .into_iter()
            .map(|(_, name)| name.to_owned())
            .collect::<Vec<_>>()
    };
    let grouped = file(
        "src/store/claim.rs",
        "use crate::{domain::{id, task}, fleet::Roster};",
    );
    assert_eq!(names(&grouped), ["domain", "fleet"]);
    let relative = file(
        "src/store/claim.rs",
        "use super::row; use super::super::dispatch::Sweep;",
    );
    assert_eq!(names(&relative), ["dispatch"]);
    let inline = file("src/main.rs", "fn main() { fencepost::cli::run() }");
    assert_eq!(names(&inline), ["cli"]);
}

#[test]
fn files_stay_short() {
    let mut long = Vec::new();
    for (dir, longest) in [("src", LONGEST_FILE), ("tests", LONGEST_TEST_FILE)] {
        let found = sources(dir).filter(|file| file.lines > longest);
        long.extend(found.map(|file| format!("{}: {} of {longest}", file.path, file.lines)));
    }
    assert_none("no file has more lines than fit a sitting", &long);
}

#[test]
fn the_product_does_not_panic() {
    const CALLS: [&str; 6] = [
        ".unwrap()",
        ".expect(",
        "panic!(",
        "unreachable!(",
        "todo!(",
        "unimplemented!(",
    ];
    let mut broken = Vec::new();
    for file in product() {
        for call in CALLS {
            for (offset, _) in file.code.match_indices(call) {
                broken.push(format!("{}: {call}", file.place(offset)));
            }
        }
    }
    assert_none(
        "errors are values: a panic kills a replica with all it has in flight",
        &broken,
    );
}

#[test]
fn every_statement_has_one_caller() {
    let mut callers: BTreeMap<String, Vec<String>> = files("sql", "sql")
        .iter()
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                Vec::new(),
            )
        })
        .collect();
    let mut broken = Vec::new();
    for file in product() {
        let included = file.literals.iter().filter(|literal| {
            Path::new(&literal.text)
                .extension()
                .is_some_and(|extension| extension == "sql")
        });
        for literal in included {
            let name = literal.text.rsplit('/').next().unwrap_or_default();
            match callers.get_mut(name) {
                Some(places) => places.push(file.place(literal.start)),
                None => broken.push(format!("{}: no such file", literal.text)),
            }
        }
    }
    for (name, places) in callers {
        if places.len() != 1 {
            broken.push(format!(
                "sql/{name} has {} callers {places:?}",
                places.len()
            ));
        }
    }
    assert_none("each file in sql/ is bound by one function", &broken);
}

/// Whether a literal is a statement, not a sentence that happens to begin with a verb.
fn is_sql(text: &str) -> bool {
    const ANYWHERE: [&str; 5] = [
        "insert into ",
        "delete from ",
        "create table ",
        "create schema ",
        "alter table ",
    ];
    const FIRST: [&str; 10] = [
        "select ",
        "listen ",
        "notify ",
        "truncate ",
        "set local ",
        "begin;",
        "commit;",
        "create database ",
        "drop database ",
        "drop schema ",
    ];
    let text = text.replace("\\n", " ").to_lowercase();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
    FIRST.iter().any(|start| text.starts_with(start))
        || ANYWHERE.iter().any(|part| text.contains(part))
        || (text.contains("select ") && text.contains(" from "))
        || (text.starts_with("update ") && text.contains(" set "))
}

#[test]
fn sql_stands_in_its_own_files() {
    assert!(is_sql("select 1") && is_sql("with a as (\n select x from y) select"));
    assert!(is_sql("UPDATE fencepost.live\n  SET state = 1") && !is_sql("update failed: {error}"));
    let mut broken = Vec::new();
    for file in product() {
        for literal in file.literals.iter().filter(|literal| is_sql(&literal.text)) {
            let start: String = literal.text.chars().take(60).collect();
            broken.push(format!("{}: {start:?}", file.place(literal.start)));
        }
    }
    assert_none("SQL text stands in sql/ and migrations/ only", &broken);
}

#[test]
fn every_dependency_has_its_reason() {
    let mut section = String::new();
    let mut declared = BTreeSet::new();
    for line in document("Cargo.toml").lines() {
        if line.starts_with('[') {
            line.clone_into(&mut section);
        } else if section.ends_with("dependencies]") {
            let name = line.split(['=', '.']).next().unwrap_or_default().trim();
            if !name.is_empty() && !name.starts_with('#') {
                declared.insert(name.to_owned());
            }
        }
    }
    assert!(
        declared.contains("tokio"),
        "Cargo.toml was not understood: {declared:?}"
    );
    // A row of the table is `| name | why this one | what was rejected |`.
    let explained: BTreeSet<_> = document("docs/dependencies.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter(|(_, reason)| reason.split('|').take(2).all(|cell| cell.trim().len() > 5))
        .map(|(name, _)| name.to_owned())
        .collect();
    let mut broken = Vec::new();
    broken.extend(
        declared
            .difference(&explained)
            .map(|name| format!("{name} has no reason")),
    );
    broken.extend(
        explained
            .difference(&declared)
            .map(|name| format!("{name} is not used")),
    );
    assert_none(
        "docs/dependencies.md gives a reason for each crate in Cargo.toml",
        &broken,
    );
}

#[test]
fn the_changelog_has_a_place_for_what_comes_next() {
    assert!(document("CHANGELOG.md").contains("\n## [Unreleased]\n"));
}

/// Names of all tests, as `it::file::name` and `file::tests::name`.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (dir, crate_name, inner) in [("tests/it", "it::", ""), ("src", "", "tests::")] {
        for file in sources(dir) {
            let module = file.module().join("::");
            for mark in ["#[test]", "#[tokio::test"] {
                for (offset, _) in file.code.match_indices(mark) {
                    let rest = &file.code[offset..];
                    let name = rest
                        .find("fn ")
                        .map_or("", |start| identifier(&rest[start + 3..]));
                    let inner = if module.ends_with("::tests") {
                        ""
                    } else {
                        inner
                    };
                    found.insert(format!("{crate_name}{module}::{inner}{name}"));
                }
            }
        }
    }
    found
}

#[test]
fn the_map_is_short_and_names_real_tests() {
    let map = document("ARCHITECTURE.md");
    let lines = map.lines().count();
    assert!(
        lines <= LONGEST_MAP,
        "ARCHITECTURE.md has {lines} lines, more than {LONGEST_MAP}"
    );
    // Odd pieces between backquotes are code; a test is written `it::file::name`, a test beside
    // the code `module::tests::name`.
    let named: Vec<_> = map
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| code.bytes().all(|byte| is_word(byte) || byte == b':'))
        .filter(|code| code.starts_with("it::") || code.contains("::tests::"))
        .collect();
    assert!(
        !named.is_empty(),
        "ARCHITECTURE.md names no test that holds its invariants"
    );
    let tests = tests();
    let missing: Vec<_> = named
        .into_iter()
        .filter(|name| !tests.contains(*name))
        .map(|name| format!("{name} is no test"))
        .collect();
    assert_none("each test that ARCHITECTURE.md names exists", &missing);
}
