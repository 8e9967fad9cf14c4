//! Bulk import: rows that were copied into a table of the producer's own become tasks.

use fencepost::store::Client;
use futures_util::SinkExt as _;
use tokio_postgres::CopyInSink;

use crate::support::Queue;

const STAGE: &str = "create temp table batch of fencepost.import_task";
const IMPORT: &str = "select created, existing, replaced from fencepost.import_tasks('batch')";

async fn copy(client: &Client, columns: &str, rows: String) {
    let call = format!("copy batch ({columns}) from stdin with (format csv)");
    let sink: CopyInSink<bytes::Bytes> = client.copy_in(&call).await.unwrap();
    let mut sink = std::pin::pin!(sink);
    sink.send(rows.into()).await.unwrap();
    sink.finish().await.unwrap();
}

async fn import(client: &Client) -> (i64, i64, i64) {
    let row = client.query_one(IMPORT, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

#[tokio::test]
async fn what_was_copied_is_enqueued_in_its_order_with_all_that_it_says() {
    const TASKS: usize = 5_000;
    let queue = Queue::new().await;
    let client = queue.client().await;
    client.batch_execute(STAGE).await.unwrap();
    let rows: Vec<String> = (0..TASKS)
        .map(|n| format!("q,t,\"{{\"\"n\"\": {n}}}\",k{},2\n", n % 4_000))
        .collect();
    let rows = rows.concat();
    copy(
        &client,
        "task_queue, task_type, payload, dispatch_key, priority",
        rows,
    )
    .await;
    assert_eq!(import(&client).await, (4_000, 1_000, 0));
    let in_order = "select count(*) from (
            select id, (convert_from(payload, 'UTF8')::json ->> 'n')::int as n, lag(id) over (order by id) as before,
                row_number() over (order by id) - 1 as place
            from fencepost.task
        ) as task
        where place = n";
    assert_eq!(queue.number(in_order).await, 4_000);
    let prior = "select count(*) from fencepost.live where priority = 2";
    assert_eq!(queue.number(prior).await, 4_000);

    // Bytes are opaque, and what they say of their type counts.
    client.batch_execute("truncate batch").await.unwrap();
    let columns = "task_queue, task_type, payload, bytes, content_type, namespace, delay, labels";
    let rows = "q,t,,\\x0001,,other,1 hour,\nq,t,,\\x7b,text/plain,,,\"{\"\"a\"\": \"\"b\"\"}\"\nq,t,[1],,,,,\n";
    copy(&client, columns, rows.to_owned()).await;
    assert_eq!(import(&client).await, (3, 0, 0));
    let told = "select string_agg(concat_ws(' ', namespace, content_type, payload_size, labels), ', ' order by id)
        from (
            select task.id, namespace.name as namespace, task.content_type, octet_length(task.payload) as payload_size,
                task.labels
            from fencepost.task
            inner join fencepost.route using (route_id)
            inner join fencepost.namespace using (namespace_id)
            order by task.id desc
            limit 3
        ) as last";
    let told: String = client.query_one(told, &[]).await.unwrap().get(0);
    assert_eq!(
        told,
        "other application/octet-stream 2, default text/plain 1 {\"a\": \"b\"}, default application/json 3"
    );
    queue.assert_sound().await;
}

#[tokio::test]
async fn a_row_that_is_refused_is_named_by_its_place_and_none_is_enqueued() {
    let queue = Queue::new().await;
    let client = queue.client().await;
    client.batch_execute(STAGE).await.unwrap();
    let mut rows: String = "q,t,1\n".repeat(4_321);
    rows.push_str("q,t,{oops\n");
    copy(&client, "task_queue, task_type, payload", rows).await;
    let error = client.query_one(IMPORT, &[]).await.unwrap_err();
    let refusal = error.as_db_error().unwrap();
    assert!(
        refusal.message().starts_with("task 4322: payload"),
        "{refusal}"
    );
    assert_eq!(
        (refusal.detail(), refusal.column()),
        (Some("invalid_json"), Some("payload"))
    );
    client.batch_execute("truncate batch").await.unwrap();
    copy(&client, "task_queue, task_type, payload", ",t,1\n".into()).await;
    let error = client.query_one(IMPORT, &[]).await.unwrap_err();
    let refusal = error.as_db_error().unwrap();
    assert_eq!(refusal.column(), Some("task_queue"), "{refusal}");
    assert_eq!(queue.number("select count(*) from fencepost.live").await, 0);

    client.batch_execute("truncate batch").await.unwrap();
    assert_eq!(import(&client).await, (0, 0, 0), "of an empty table");
    let other = "select fencepost.import_tasks('fencepost.route')";
    let error = client.query_one(other, &[]).await.unwrap_err();
    let message = error.as_db_error().unwrap().message();
    assert_eq!(
        message,
        "fencepost.route is no table of fencepost.import_task."
    );
}
