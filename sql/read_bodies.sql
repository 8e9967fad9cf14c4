-- Reads the bodies of claimed tasks: $1 ids. The limit keeps each id a look into its own partition, whatever the
-- planner thinks of the others; a plan that does not know an array would look for all its ids in every partition.
select
    body.id,
    body.origin,
    body.max_attempts,
    body.run_timeout_ms,
    body.heartbeat_timeout_ms,
    body.settle_accepted,
    body.workflow_id,
    body.run_id,
    body.ordinal,
    body.content_type,
    body.labels::text as labels,
    body.options::text as options,
    body.payload
from unnest($1::bigint[]) as wanted (id)
cross join lateral (
    select task.*
    from fencepost.task
    where task.id = wanted.id
    limit 1
) as body
