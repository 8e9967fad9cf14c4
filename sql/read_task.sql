-- Reads one task as producers see it: $1 id, $2 whether with its payload, $3 whether with its result. By id
-- alone, which finds every partition, since those who wait ask again and again.
select
    task.id,
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    case
        when outcome.state = 1 then 'done'
        when outcome.state = 2 then 'failed'
        when outcome.state = 3 then 'cancelled'
        when live.state = 1 then 'running'
        else fencepost.waiting_state(live.hold, live.visible_after)
    end as state,
    outcome.id is not null as ended,
    coalesce(live.attempt, outcome.attempt, 0) as attempt,
    live.priority,
    coalesce(live.cancel_requested, false) as cancel_requested,
    fencepost.rfc3339(task.enqueued_at) as enqueued_at,
    fencepost.rfc3339(live.visible_after) as visible_after,
    fencepost.rfc3339(outcome.ended_at) as ended_at,
    outcome.worker,
    outcome.error_class,
    outcome.error_message,
    task.dispatch_key,
    task.labels::text as labels,
    task.content_type,
    case when $2::boolean then task.payload end as payload,
    outcome.result_type,
    case when $3::boolean then outcome.result end as result,
    -- retention leaves the type and takes the bytes
    outcome.result_type is not null and outcome.result is null as result_expired
from fencepost.task
inner join fencepost.route on route.route_id = task.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
left join fencepost.live on live.id = $1::bigint
left join fencepost.outcome on outcome.id = $1::bigint
where task.id = $1::bigint
