//! The statements in `sql/` against the migrated schema.

use std::collections::BTreeSet;
use std::path::Path;

use fencepost::domain::settlement::Move;

use crate::support::TestDb;

/// File name and text of every statement.
fn statements() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
    let mut all: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    all.sort();
    assert!(all.len() > 20, "{}", all.len());
    all
}

/// The text without its comments, which name parameters too.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("--").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

/// Every `$n` of a statement with the type that its first cast names, if it has one.
fn parameters(code: &str) -> BTreeSet<(usize, Option<String>)> {
    code.split('$')
        .skip(1)
        .map(|rest| {
            let digits = rest.chars().take_while(char::is_ascii_digit).count();
            let cast = rest[digits..].strip_prefix("::").map(|kind| {
                kind.chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || "_[]".contains(*c))
                    .collect()
            });
            (rest[..digits].parse().unwrap(), cast)
        })
        .collect()
}

#[tokio::test]
async fn every_statement_fits_the_schema_and_names_the_type_of_each_parameter() {
    let db = TestDb::new().await;
    let client = db.connect().await;
    for (name, text) in statements() {
        let prepared = client.prepare(&text).await;
        let prepared = prepared.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let found = parameters(&code(&text));
        // An uncast parameter takes its type from the planner's guess, which a change elsewhere can turn.
        for (number, cast) in &found {
            assert!(cast.is_some(), "{name}: ${number} has no cast");
        }
        let numbers: Vec<usize> = found.iter().map(|(number, _)| *number).collect();
        let each_once: Vec<usize> = (1..=prepared.params().len()).collect();
        assert_eq!(
            numbers, each_once,
            "{name}: a parameter is missing or has two types"
        );
    }
}

#[test]
fn the_rule_book_in_sql_has_exactly_the_moves_of_the_domain() {
    // Exhaustive: a new move does not compile until it has its place here.
    const fn following(last: Option<Move>) -> Option<Move> {
        match last {
            None => Some(Move::Retry),
            Some(Move::Retry) => Some(Move::TimeOut),
            Some(Move::TimeOut) => Some(Move::RetryAtOnce),
            Some(Move::RetryAtOnce) => Some(Move::NotAccepted),
            Some(Move::NotAccepted) => Some(Move::Snooze),
            Some(Move::Snooze) => Some(Move::Release),
            Some(Move::Release) => Some(Move::HandOver),
            Some(Move::HandOver) => Some(Move::ReArm),
            Some(Move::ReArm) => Some(Move::DeadLetter),
            Some(Move::DeadLetter) => Some(Move::Unservable),
            Some(Move::Unservable) => Some(Move::Expire),
            Some(Move::Expire) => None,
        }
    }
    let moves: Vec<&str> = std::iter::successors(following(None), |last| following(Some(*last)))
        .map(Move::name)
        .collect();
    let all = statements();
    let (_, text) = all
        .iter()
        .find(|(name, _)| name == "return_tasks.sql")
        .unwrap();
    let code = code(text);
    let table = code
        .split_once("values")
        .unwrap()
        .1
        .split_once("\n),")
        .unwrap()
        .0;
    let written: Vec<&str> = table
        .lines()
        .filter_map(|line| line.trim().strip_prefix("('")?.split('\'').next())
        .collect();
    assert_eq!(written, moves);
}
