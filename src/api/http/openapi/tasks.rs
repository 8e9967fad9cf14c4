//! Tasks, direct requests, pauses, and the replica itself.

use utoipa::openapi::Required;

use super::bodies::{Because, CancelTasks, NewPause, NewRequest, NewTasks, PausedAddress};
use super::operation::{
    BODY, DATABASE, LOOSE_BODY, Operation, PARAMETERS, TASK, id, instant, one_of, text, truth,
};
use crate::api::http::ReadyView;
use crate::api::http::execute::{ReplyView, RequestsPage};
use crate::api::http::levers::{CancelledList, PausesPage};
use crate::api::http::lives::ReplicasList;
use crate::api::http::tasks::{EnqueuedView, TasksPage};
use crate::api::{
    CancelReport, CancelView, HistoryView, PausedView, ResumedView, STATES, TaskView, WhyView,
};
use crate::telemetry;

const ID: &str = "The task's id.";

pub(super) fn operations() -> Vec<Operation> {
    let mut all = tasks();
    all.extend(direct());
    all.extend(pauses());
    all.extend(replica());
    all
}

fn tasks() -> Vec<Operation> {
    vec![
        Operation::post("/v1/tasks", ("tasks", "enqueueTasks"), "Enqueue a task, or a list of them")
            .about(
                "A list is enqueued as a whole or not at all, and answered in its order. A task with a dispatch key \
                 may be sent again safely.",
            )
            .body::<NewTasks>(Required::True)
            .answers_one_or_many::<EnqueuedView>(201, "A task was created.")
            .answers_one_or_many::<EnqueuedView>(200, "Every dispatch key named a task that existed.")
            .refuses(&[BODY, TASK, DATABASE, &["FP-111"]]),
        Operation::get("/v1/tasks", ("tasks", "listTasks"), "List tasks, newest first")
            .about(
                "A page can be short, or empty, and not be the last: it looks at 20,000 tasks at most and says how far \
                 back it came.",
            )
            .query("namespace", text(), "Tasks of this tenant.")
            .query("task_queue", text(), "Tasks of this queue.")
            .query("task_type", text(), "Tasks of this type.")
            .query("state", one_of(STATES), "Tasks in this state.")
            .query(
                "dispatch_key",
                text(),
                "The task that this key names now, in the namespace, or in `default` where none is given.",
            )
            .query("concurrency_key", text(), "Tasks in the line of this key.")
            .query("enqueued_after", instant(), "Tasks that were enqueued then or later, to a millisecond.")
            .query("enqueued_before", instant(), "Tasks that were enqueued earlier, to a millisecond.")
            .page("before", id(), 100)
            .answers::<TasksPage>(200, "A page.")
            .refuses(&[PARAMETERS, DATABASE]),
        Operation::get("/v1/tasks/{id}", ("tasks", "readTask"), "Look at one task")
            .path("id", id(), ID)
            .query("payload", truth(), "With payload and result, where operators may see them.")
            .answers::<TaskView>(200, "The task.")
            .refuses(&[PARAMETERS, DATABASE, &["FP-104", "FP-116"]]),
        Operation::get("/v1/tasks/{id}/history", ("tasks", "readHistory"), "Follow the life of one task")
            .about("Its failed and lost deliveries, the first at first, and who has it.")
            .path("id", id(), ID)
            .answers::<HistoryView>(200, "What stands beside the task.")
            .refuses(&[PARAMETERS, DATABASE, &["FP-104"]]),
        Operation::post("/v1/tasks/{id}/cancel", ("tasks", "cancelTask"), "Cancel one task")
            .about("A waiting task ends at once; a running one is asked to stop through its worker.")
            .path("id", id(), ID)
            .body::<Because>(Required::False)
            .answers::<CancelView>(200, "What became of it.")
            .refuses(&[LOOSE_BODY, DATABASE, &["FP-104"]]),
        Operation::get("/v1/tasks/{id}/why", ("tasks", "askWhy"), "Ask why a task is not running")
            .path("id", id(), ID)
            .answers::<WhyView>(200, "The verdict, and what each gate says.")
            .refuses(&[PARAMETERS, DATABASE, &["FP-104"]]),
        Operation::get("/v1/tasks/{id}/wait", ("tasks", "waitForTask"), "Wait for a task's end")
            .about("Answers with the result when the task has ended, and without when the time is over before.")
            .path("id", id(), ID)
            .query("timeout", text(), "How long, such as `30s`, which it is unless given; at most a minute.")
            .answers::<TaskView>(200, "The task; `ended` says whether it has.")
            .refuses(&[PARAMETERS, DATABASE, &["FP-104", "FP-115", "FP-121"]]),
        Operation::post("/v1/tasks/cancel", ("tasks", "cancelTasks"), "Cancel tasks by ids, by key or by filter")
            .about(
                "A filter is worked off in small batches, for at most ten seconds; a `next` that is not null is the \
                 `after` of a further call.",
            )
            .body::<CancelTasks>(Required::True)
            .answers_either::<CancelledList, CancelReport>(
                200,
                "What became of each task that was named, or what a filter came to.",
            )
            .refuses(&[BODY, DATABASE, &["FP-041", "FP-104"]]),
    ]
}

fn direct() -> Vec<Operation> {
    vec![
        Operation::post(
            "/v1/execute",
            ("direct", "execute"),
            "Have a connected worker do something now",
        )
        .about(
            "Nothing is stored and nothing is repeated. A caller that hangs up cancels the work.",
        )
        .body::<NewRequest>(Required::True)
        .answers::<ReplyView>(200, "The worker's result.")
        .refuses(&[
            BODY,
            DATABASE,
            &["FP-001", "FP-002", "FP-003", "FP-004", "FP-008"],
            &[
                "FP-120", "FP-121", "FP-122", "FP-123", "FP-124", "FP-125", "FP-126",
            ],
        ]),
        Operation::get(
            "/v1/execute",
            ("direct", "listRequests"),
            "List the direct requests of this replica",
        )
        .about("Those that wait and those that run, in order of arrival.")
        .page("after", text(), 1_000)
        .answers::<RequestsPage>(200, "All of them: a replica keeps at most 1,000 that wait.")
        .refuses(&[PARAMETERS, DATABASE]),
    ]
}

fn pauses() -> Vec<Operation> {
    vec![
        Operation::post(
            "/v1/pause",
            ("pauses", "pause"),
            "Keep tasks of an address from starting",
        )
        .body::<NewPause>(Required::True)
        .answers::<PausedView>(200, "The pause as it stands.")
        .refuses(&[BODY, DATABASE, &["FP-001", "FP-019", "FP-041"]]),
        Operation::post("/v1/resume", ("pauses", "resume"), "End a pause")
            .body::<PausedAddress>(Required::True)
            .answers::<ResumedView>(200, "What was paused, and since when.")
            .refuses(&[BODY, DATABASE, &["FP-001", "FP-019", "FP-020"]]),
        Operation::get(
            "/v1/pauses",
            ("pauses", "listPauses"),
            "List what is paused, the widest first",
        )
        .page("after", text(), 1_000)
        .answers::<PausesPage>(200, "All pauses.")
        .refuses(&[PARAMETERS, DATABASE]),
    ]
}

fn replica() -> Vec<Operation> {
    vec![
        Operation::get(
            "/healthz",
            ("replica", "isAlive"),
            "Ask whether the process runs",
        )
        .answers_text(200, "It does.", "text/plain; charset=utf-8"),
        Operation::get(
            "/readyz",
            ("replica", "isReady"),
            "Ask whether this replica is fit for traffic",
        )
        .answers::<ReadyView>(200, "It is.")
        .answers::<ReadyView>(503, "It is not, and why."),
        Operation::get(
            "/metrics",
            ("replica", "readMetrics"),
            "Read the metrics of this replica, for Prometheus",
        )
        .about("docs/metrics.md says what each of them means.")
        .answers_text(200, "All metrics.", telemetry::CONTENT_TYPE)
        .refuses(&[&["FP-114"]]),
        Operation::get(
            "/v1/replicas",
            ("replica", "listReplicas"),
            "List the starts of replicas that are kept",
        )
        .about("The living first; a dead one is kept for an hour, and for as long as it owns tasks.")
        .answers::<ReplicasList>(200, "Each with its state.")
        .refuses(&[PARAMETERS, DATABASE]),
        Operation::get(
            "/v1/events",
            ("replica", "watch"),
            "Watch what happens, as server-sent events",
        )
        .about(
            "`queues` comes once a second; `replica`, `worker`, `pause`, `dead_letters`, `unserved` and `database` when \
             something changes; docs/dashboard.md describes them. The stream ends with `bye` when the replica drains.",
        )
        .answers_text(200, "Events, until the caller hangs up.", "text/event-stream")
        .refuses(&[PARAMETERS, &["FP-117"]]),
        Operation::get("/", ("replica", "readPage"), "Open the dashboard")
            .answers_text(200, "Its page.", "text/html; charset=utf-8"),
        Operation::get(
            "/dashboard/{version}/{file}",
            ("replica", "readFile"),
            "Read a file of the dashboard",
        )
        .path("version", text(), "What the page names.")
        .path("file", text(), "Its name.")
        .answers_text(200, "The file.", "text/javascript; charset=utf-8")
        .answers_text(200, "The file.", "text/css; charset=utf-8")
        .answers_text(200, "The file.", "image/svg+xml")
        .refuses(&[&["FP-106"]]),
        Operation::get(
            "/openapi.json",
            ("replica", "readContract"),
            "Read this document",
        )
        .answers::<serde_json::Value>(200, "This document."),
    ]
}
