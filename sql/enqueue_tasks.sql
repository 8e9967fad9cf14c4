-- Enqueues tasks, all or none, by the function that every producer calls. Arrays of one value a task, of one value for
-- all of them, or null where no task has one: $1 task queues, $2 task types, $3 payloads, $4 content types, $5
-- namespaces, $6 dispatch keys, $7 delays in milliseconds, $8 times to run at (RFC 3339), $9 priorities, $10 nodes, $11
-- highest numbers of attempts, $12 run timeouts, $13 heartbeat timeouts and $14 times to start within in milliseconds,
-- $15 when to settle, $16 concurrency keys, $17 labels and $18 options as the bytes of JSON objects. Answers id,
-- created and how (created, existing, replaced) in the order of the tasks. Text is read by the database, so that what
-- can't be read is refused alike whoever brings it.
select
    enqueued.task_id,
    enqueued.created,
    enqueued.answer
from fencepost.enqueue_many(
        task_queue => $1::text[],
        task_type => $2::text[],
        payload => $3::bytea[],
        content_type => $4::text[],
        namespace => $5::text[],
        dispatch_key => $6::text[],
        delay => fencepost.read_milliseconds($7::bigint[]),
        run_at => fencepost.read_times($8::text[], 'run_at'),
        priority => $9::int[],
        node => $10::text[],
        max_attempts => $11::int[],
        run_timeout => fencepost.read_milliseconds($12::bigint[]),
        heartbeat_timeout => fencepost.read_milliseconds($13::bigint[]),
        schedule_to_start => fencepost.read_milliseconds($14::bigint[]),
        settle => $15::text[],
        concurrency_key => $16::text[],
        labels => fencepost.read_objects($17::bytea[], 'FP008', 'invalid_labels', 'labels'),
        options => fencepost.read_objects($18::bytea[], 'FP009', 'unknown_option', 'options')
    ) as enqueued
order by enqueued.ordinal
