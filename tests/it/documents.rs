//! What the documents say can be done: links lead somewhere, SQL runs, commands are understood.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::lifecycle::SHORT;
use crate::support::{Queue, Replica, TestDb};

/// Commands that run until they are stopped, or for long, or on Docker; each is run elsewhere: `it::embedded`,
/// `it::sdk_command`, `it::demo`, `it::bench`, and the gate.
const ELSEWHERE: [&str; 4] = ["serve", "worker", "demo", "bench"];
/// For one command.
const DEADLINE: Duration = Duration::from_secs(60);

pub fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between fences of this language in a document.
pub fn blocks(document: &str, language: &str) -> Vec<String> {
    let (text, mut found, mut inside) = (read(document), Vec::new(), None::<Vec<&str>>);
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut inside) {
            (Some(tag), None) => inside = Some(vec![tag]),
            (Some(_), Some(lines)) => {
                if lines.first() == Some(&language) {
                    found.push(lines[1..].join("\n"));
                }
                inside = None;
            }
            (None, Some(lines)) => lines.push(line),
            (None, None) => {}
        }
    }
    assert!(inside.is_none(), "{document} has an open fence");
    found
}

/// README and the like, and all of docs/ but decisions.
fn documents() -> Vec<String> {
    let mut all: Vec<String> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(str::to_owned)
        .into();
    for folder in ["docs", "docs/decisions"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if Path::new(&name).extension().is_some_and(|end| end == "md") {
                all.push(format!("{folder}/{name}"));
            }
        }
    }
    all
}

#[test]
fn every_link_leads_to_a_file() {
    let mut looked = 0;
    for document in documents() {
        let folder = Path::new(&document).parent().unwrap().to_owned();
        for link in read(&document).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if target.is_empty() || target.starts_with("http") {
                continue;
            }
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(&folder)
                .join(target);
            assert!(path.exists(), "{document} links to {target}");
            looked += 1;
        }
    }
    assert!(looked > 20);
}

#[tokio::test]
async fn the_sql_of_the_documents_runs() {
    for document in documents() {
        let found = blocks(&document, "sql");
        if found.is_empty() {
            continue;
        }
        let queue = Queue::new().await;
        let client = queue.client().await;
        if document != "docs/tutorial.md" {
            let tables =
                "create table account (id bigint primary key, mail text, balance int default 100);
                insert into account (id) values (1)";
            client.batch_execute(tables).await.unwrap();
        }
        queue.enqueue(1).await;
        let token = queue.one().await;
        for block in found {
            // psql reads files; a server's connection has none.
            let lines = block.lines().filter(|line| !line.starts_with('\\'));
            let script = lines.collect::<Vec<_>>().join("\n");
            let running = format!("{}.{}.{}", token.id, token.epoch, token.fence);
            let script = script.replace("252872175969632257.0.1", &running);
            let ran = client.batch_execute(&script).await;
            ran.unwrap_or_else(|error| panic!("{document}: {error:?}\n{script}"));
        }
    }
}

/// Scripts of a document: blocks that begin with a command, and the lines behind `$ ` of those that show answers too.
fn scripts(document: &str) -> Vec<String> {
    let mut all = Vec::new();
    for language in ["", "sh"] {
        for block in blocks(document, language) {
            if block.starts_with("fencepost ") {
                all.push(block);
            } else {
                let prompts = block.lines().filter_map(|line| line.strip_prefix("$ "));
                all.extend(prompts.map(str::to_owned));
            }
        }
    }
    all
}

#[tokio::test]
async fn the_commands_of_the_documents_are_understood() {
    let test = TestDb::new().await;
    let replica = Replica::start(&test.url(), SHORT).await;
    let program = Path::new(env!("CARGO_BIN_EXE_fencepost"));
    let folder = tempfile::tempdir().unwrap();
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let db = test.connect().await;
    let one = "select task_id from fencepost.enqueue('emails', 'welcome', '{\"user\": 1}')";
    let id: i64 = db.query_one(one, &[]).await.unwrap().get(0);
    let mut ran = 0;
    for document in documents() {
        for script in scripts(&document) {
            let is_elsewhere = script.lines().any(|line| {
                ELSEWHERE
                    .iter()
                    .any(|name| line.starts_with(&format!("fencepost {name}")))
            });
            // What an ellipsis stands for is the reader's.
            if is_elsewhere || script.contains('…') {
                continue;
            }
            let script = with_ids(&script, id).replace(" --wait", " --wait --timeout 1s");
            let child = Command::new("sh")
                .args(["-c", &script])
                .current_dir(folder.path())
                .env("PATH", &path)
                .env("DATABASE_URL", test.url())
                .env("FENCEPOST_HTTP", format!("http://{}", replica.http()))
                .stdin(Stdio::null())
                .kill_on_drop(true)
                .output();
            let output = tokio::time::timeout(DEADLINE, child).await;
            let output = output.unwrap_or_else(|_| panic!("{document}: {script} does not end"));
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_understood = output.status.code() != Some(127) && !said.contains("\nUsage: ");
            assert!(is_understood, "{document}: {script}\n{said}");
            ran += 1;
        }
    }
    assert!(ran > 20, "{ran}");
}

/// Numbers as long as ids become that of a task that is there.
fn with_ids(script: &str, id: i64) -> String {
    let mut out = String::new();
    let mut digits = String::new();
    for character in script.chars().chain(['\n']) {
        if character.is_ascii_digit() {
            digits.push(character);
            continue;
        }
        if digits.len() >= 17 {
            out.push_str(&id.to_string());
        } else {
            out.push_str(&digits);
        }
        digits.clear();
        out.push(character);
    }
    out
}

#[test]
fn the_tour_names_each_document() {
    let readme = read("README.md");
    for document in documents() {
        let is_decision = document.starts_with("docs/decisions/");
        if document.starts_with("docs/") && !is_decision {
            assert!(readme.contains(&format!("]({document})")), "{document}");
        }
    }
}
