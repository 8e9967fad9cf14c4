-- What stands beside a task for those who follow its life: $1 id. By id alone, which finds every partition; the limits
-- keep each a look for one row.
select
    task.id,
    task.origin,
    fencepost.rfc3339(task.enqueued_at) as enqueued_at,
    task.concurrency_key,
    task.max_attempts,
    task.run_timeout_ms,
    task.heartbeat_timeout_ms,
    task.workflow_id,
    task.run_id,
    task.ordinal,
    octet_length(task.payload) as payload_bytes,
    octet_length(outcome.result) as result_bytes,
    coalesce(outcome.attempt, live.attempt, 0) as attempt,
    coalesce(live.losses, letter.losses) as losses,
    live.fence,
    live.dispatcher,
    dispatcher.name as replica,
    fencepost.rfc3339(coalesce(live.claimed_at, outcome.claimed_at)) as claimed_at,
    fencepost.rfc3339(live.deadline) as deadline,
    fencepost.rfc3339(live.start_by) as start_by,
    outcome.fence as ended_fence,
    letter.cause as letter_cause,
    letter.redriven_as
from fencepost.task
left join fencepost.live on live.id = $1::bigint
left join fencepost.outcome on outcome.id = $1::bigint
left join lateral (
    select known.name
    from fencepost.dispatcher as known
    where known.id = live.dispatcher
    limit 1
) as dispatcher on true
left join lateral (
    select
        dead_letter.cause,
        dead_letter.losses,
        dead_letter.redriven_as
    from fencepost.dead_letter
    where dead_letter.id = $1::bigint
    limit 1
) as letter on true
where task.id = $1::bigint
