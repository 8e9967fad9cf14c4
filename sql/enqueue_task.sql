-- Enqueues one task that has nothing but its address, a payload and perhaps a priority, as enqueue_tasks.sql would:
-- $1 task queue, $2 task type, $3 payload, $4 content type, $5 namespace, $6 priority; null for the default. Most calls
-- are such, and twelve arrays of nothing cost more than their row.
select
    enqueued.task_id,
    enqueued.created,
    enqueued.answer
from fencepost.enqueue_bytes(
        task_queue => $1::text,
        task_type => $2::text,
        payload => $3::bytea,
        content_type => coalesce($4::text, 'application/json'),
        namespace => coalesce($5::text, 'default'),
        priority => coalesce($6::int, 1)
    ) as enqueued
