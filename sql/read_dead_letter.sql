-- Reads one dead letter: $1 id, $2 whether with its payload.
select
    letter.id,
    letter.origin,
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    letter.cause,
    letter.error_class,
    letter.error_message,
    letter.attempt,
    letter.losses,
    letter.epoch,
    letter.fence,
    letter.priority,
    letter.judged,
    fencepost.rfc3339(letter.told_at) as told_at,
    letter.tell_error,
    untold.event_id is not null as telling,
    letter.redriven_as,
    letter.workflow_id,
    letter.run_id,
    letter.ordinal,
    letter.concurrency_key,
    letter.labels::text as labels,
    fencepost.rfc3339(letter.enqueued_at) as enqueued_at,
    fencepost.rfc3339(letter.dead_at) as dead_at,
    letter.content_type,
    octet_length(letter.payload) as payload_bytes,
    case when $2::boolean then letter.payload end as payload
from fencepost.dead_letter as letter
inner join fencepost.route on route.route_id = letter.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
left join lateral (
    select event.event_id
    from fencepost.dead_letter_event as event
    where event.namespace_id = route.namespace_id and event.kind = 'webhook' and event.letter_id = letter.id
    limit 1
) as untold on true
where letter.id = $1::bigint
