-- Enqueues one task that has nothing but its address, a payload and perhaps a priority: $1 task queue, $2 task type,
-- $3 payload, $4 content type, $5 namespace, $6 priority; null for the default. Answers its id; null, with nothing
-- written, where it is not that plain after all, which enqueue_tasks.sql judges. Most calls are such, and twelve arrays
-- of nothing cost more than their row.
select
    fencepost.put_plain_task(
        task_queue => $1::text,
        task_type => $2::text,
        payload => $3::bytea,
        content_type => coalesce($4::text, 'application/json'),
        namespace => coalesce($5::text, 'default'),
        priority => coalesce($6::int, 1)
    ) as task_id
