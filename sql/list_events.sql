-- The history of a run, oldest first: $1 run, $2 the event that all are above, $3 how many.
select
    event.event_id,
    event.kind,
    event.task_id,
    body.ordinal,
    event.detail::text as detail,
    fencepost.rfc3339(event.recorded_at) as recorded_at
from (
    select workflow_event.*
    from fencepost.workflow_event
    where workflow_event.run_id = $1::bigint and workflow_event.event_id > $2::bigint
    order by workflow_event.event_id
    limit $3::bigint
) as event
left join lateral (
    select task.ordinal
    from fencepost.task
    where task.id = event.task_id
    limit 1
) as body on true
order by event.event_id
