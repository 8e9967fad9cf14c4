//! Queues, namespaces and workers.

use utoipa::openapi::Required;
use utoipa::openapi::path::HttpMethod;

use super::bodies::{NamespaceSettings, NewQueue, OrderNote, StoppedKey};
use super::operation::{BODY, DATABASE, LOOSE_BODY, Operation, PARAMETERS, integer, one_of, text};
use crate::api::http::keys::StoppedKeysPage;
use crate::api::http::lives::SharesList;
use crate::api::http::operators::{
    NamespacesPage, OrderedView, QueuesPage, UnservedPage, WorkersPage,
};
use crate::api::{DeclaredView, NamespaceView, ResumedKeyView};

pub(super) fn operations() -> Vec<Operation> {
    let mut all = queues();
    all.extend(keys());
    all.extend(namespaces());
    all.extend(workers());
    all
}

fn queues() -> Vec<Operation> {
    vec![
        Operation::get("/v1/queues", ("queues", "listQueues"), "List the known queues by name")
            .about("A queue is known from its first task or its declaration on, for each type and node.")
            .query("namespace", text(), "Queues of this tenant.")
            .query("task_queue", text(), "Routes of this queue.")
            .query(
                "count_to",
                integer(1, 10_000).default(Some(10_000.into())),
                "Counts of waiting tasks are exact up to this, and estimates beyond it; less is faster where many queues are deep.",
            )
            .page("after", text(), 1_000)
            .answers::<QueuesPage>(200, "What waits and what runs in each.")
            .refuses(&[PARAMETERS, DATABASE]),
        Operation::post("/v1/queues", ("queues", "declareQueue"), "Declare a queue, or change its settings")
            .body::<NewQueue>(Required::True)
            .answers::<DeclaredView>(200, "It is declared.")
            .refuses(&[
                BODY,
                DATABASE,
                &["FP-001", "FP-018", "FP-061", "FP-062", "FP-063", "FP-064"],
            ]),
        Operation::get("/v1/queues/unserved", ("queues", "listUnserved"), "List what nobody serves")
            .about("Routes with due tasks that no worker of any replica can take now; within a page the longest wait is first.")
            .page("after", text(), 1_000)
            .answers::<UnservedPage>(200, "Each with the reason.")
            .refuses(&[PARAMETERS, DATABASE]),
    ]
}

fn keys() -> Vec<Operation> {
    vec![
        Operation::get(
            "/v1/queues/stopped-keys",
            ("queues", "listStoppedKeys"),
            "List stopped concurrency keys",
        )
        .about("Dead letters that stop their keys, the longest first.")
        .query("namespace", text(), "Keys of this tenant.")
        .page("after", text(), 1_000)
        .answers::<StoppedKeysPage>(200, "Each with its dead letter.")
        .refuses(&[PARAMETERS, DATABASE]),
        Operation::post(
            "/v1/queues/resume-key",
            ("queues", "resumeKey"),
            "Let a stopped concurrency key go on",
        )
        .about("The letters that stopped it stay dead letters.")
        .body::<StoppedKey>(Required::True)
        .answers::<ResumedKeyView>(200, "Whether anything had stopped it.")
        .refuses(&[BODY, DATABASE, &["FP-001"]]),
    ]
}

fn namespaces() -> Vec<Operation> {
    vec![
        Operation::get(
            "/v1/namespaces",
            ("namespaces", "listNamespaces"),
            "List namespaces by name",
        )
        .page("after", text(), 1_000)
        .answers::<NamespacesPage>(200, "Each with its settings.")
        .refuses(&[PARAMETERS, DATABASE]),
        Operation::get(
            "/v1/shares",
            ("namespaces", "listShares"),
            "List what each namespace has of the slots",
        )
        .about("Namespaces that have anything claimed, the most at first.")
        .answers::<SharesList>(200, "Each with its claimed tasks.")
        .refuses(&[PARAMETERS, DATABASE]),
        Operation::new(
            HttpMethod::Put,
            "/v1/namespaces/{name}",
            ("namespaces", "setNamespace"),
            "Set what is given of a namespace, which is made if it is new",
        )
        .path(
            "name",
            text().min_length(Some(1)).max_length(Some(200)),
            "Its name.",
        )
        .body::<NamespaceSettings>(Required::True)
        .answers::<NamespaceView>(200, "The namespace as it is now.")
        .refuses(&[
            BODY,
            DATABASE,
            &[
                "FP-001", "FP-017", "FP-044", "FP-060", "FP-061", "FP-062", "FP-063",
            ],
        ]),
    ]
}

fn workers() -> Vec<Operation> {
    let action = one_of(["drain", "cordon", "uncordon"]);
    vec![
        Operation::get("/v1/workers", ("workers", "listWorkers"), "List the workers of all live replicas")
            .about(
                "With the orders for workers that are away. A request with `upgrade: websocket` connects a worker \
                 instead; docs/protocol.md describes its frames.",
            )
            .page("after", text(), 1_000)
            .answers::<WorkersPage>(200, "By identity.")
            .refuses(&[PARAMETERS, DATABASE]),
        Operation::post(
            "/v1/workers/{identity}/{action}",
            ("workers", "orderWorker"),
            "Order a worker to take nothing new, or lift that",
        )
        .about("An order holds over reconnects, also for a worker that is away; replicas take it up with their next beat.")
        .path("identity", text().min_length(Some(1)).max_length(Some(200)), "Its name for people.")
        .path("action", action, "What to do.")
        .body::<OrderNote>(Required::False)
        .answers::<OrderedView>(200, "The order holds.")
        .refuses(&[LOOSE_BODY, DATABASE, &["FP-106"]]),
    ]
}
