//! Dead letters and redrives.

use utoipa::openapi::Required;

use super::bodies::{Because, Discard, Redrive};
use super::operation::{
    BODY, DATABASE, LOOSE_BODY, Operation, PARAMETERS, id, one_of, text, truth,
};
use crate::api::dead_letters::{LetterView, RedriveView};
use crate::api::http::dead_letters::{
    Counted, DiscardedView, LettersPage, RedriveAnswers, RedrivesPage,
};

const ID: &str = "The id of the task that died.";
const REDRIVE: &str = "The redrive's number.";

pub(super) fn operations() -> Vec<Operation> {
    let mut all = letters();
    all.extend(redrives());
    all
}

fn letters() -> Vec<Operation> {
    let tag = "dead letters";
    vec![
        list(tag),
        Operation::get(
            "/v1/dead-letters/{id}",
            (tag, "readDeadLetter"),
            "Look at one dead letter",
        )
        .path("id", id(), ID)
        .query(
            "payload",
            truth(),
            "With its payload, where operators may see it.",
        )
        .answers::<LetterView>(200, "The letter with its history.")
        .refuses(&[PARAMETERS, DATABASE, &["FP-116", "FP-130"]]),
        Operation::post(
            "/v1/dead-letters/redrive",
            (tag, "redrive"),
            "Make new tasks of dead letters",
        )
        .about("By ids at once; by filter through a redrive that replicas drive.")
        .body::<Redrive>(Required::True)
        .answers_either::<RedriveAnswers, Counted>(
            200,
            "What became of each id, or the count of a dry run.",
        )
        .answers::<RedriveView>(201, "A redrive has started.")
        .refuses(&[BODY, DATABASE, &["FP-040", "FP-041", "FP-042"]]),
        Operation::post(
            "/v1/dead-letters/discard",
            (tag, "discard"),
            "Discard dead letters; history stays",
        )
        .body::<Discard>(Required::True)
        .answers_either::<DiscardedView, Counted>(
            200,
            "What it came to, or the count of a dry run.",
        )
        .refuses(&[BODY, DATABASE, &["FP-040", "FP-041"]]),
    ]
}

fn list(tag: &str) -> Operation {
    Operation::get(
        "/v1/dead-letters",
        (tag, "listDeadLetters"),
        "List dead letters, the last to die first",
    )
    .about("A page can be short, or empty, and not be the last.")
    .query("namespace", text(), "Letters of this tenant.")
    .query("task_queue", text(), "Letters of this queue.")
    .query("task_type", text(), "Letters of this type.")
    .query(
        "node",
        text(),
        "Letters of tasks that were pinned to this node.",
    )
    .query(
        "cause",
        text(),
        "`failed`, `lost`, `unservable`, `schedule_to_start` or `unserved`.",
    )
    .query("error_class", text(), "What went wrong, in a word.")
    .query("dead_before", text(), "Dead before this time, RFC 3339.")
    .query(
        "dead_after",
        text(),
        "Dead at this time or later, RFC 3339.",
    )
    .query(
        "older_than",
        text(),
        "Dead for longer than this time, such as `2h`.",
    )
    .query("newer_than", text(), "Dead for less than this time.")
    .query(
        "redriven",
        truth(),
        "Those that were redriven, or those that were not.",
    )
    .query(
        "judged",
        truth(),
        "Those that their owner has taken up, or those that it has not.",
    )
    .page(
        "before",
        text().pattern(Some("^[0-9]{1,17}-[0-9]{1,18}$")),
        100,
    )
    .answers::<LettersPage>(200, "A page.")
    .refuses(&[PARAMETERS, DATABASE, &["FP-040"]])
}

fn redrives() -> Vec<Operation> {
    let tag = "dead letters";
    vec![
        Operation::get(
            "/v1/redrives",
            (tag, "listRedrives"),
            "List redrives, the newest first",
        )
        .page("before", id(), 100)
        .answers::<RedrivesPage>(200, "A page.")
        .refuses(&[PARAMETERS, DATABASE]),
        Operation::get(
            "/v1/redrives/{id}",
            (tag, "readRedrive"),
            "Look at one redrive",
        )
        .path("id", id(), REDRIVE)
        .answers::<RedriveView>(200, "How far it is.")
        .refuses(&[PARAMETERS, DATABASE, &["FP-131"]]),
        Operation::post(
            "/v1/redrives/{id}/{action}",
            (tag, "changeRedrive"),
            "Stop or resume a redrive",
        )
        .path("id", id(), REDRIVE)
        .path("action", one_of(["stop", "resume"]), "What to do.")
        .body::<Because>(Required::False)
        .answers::<RedriveView>(200, "The redrive as it is then.")
        .refuses(&[LOOSE_BODY, DATABASE, &["FP-043", "FP-106", "FP-131"]]),
    ]
}
