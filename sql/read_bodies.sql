-- Reads the bodies of claimed tasks: $1 ids. The id alone finds the partition.
select
    task.id,
    task.origin,
    task.max_attempts,
    task.run_timeout_ms,
    task.heartbeat_timeout_ms,
    task.settle_accepted,
    task.workflow_id,
    task.run_id,
    task.ordinal,
    task.content_type,
    task.labels::text as labels,
    task.options::text as options,
    task.payload
from fencepost.task
where task.id = any($1::bigint[])
