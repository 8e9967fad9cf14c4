-- Dead letters that stop their concurrency keys, the longest first: $1 namespace (null for any), $2 how many.
select
    stop.letter_id,
    stop.stopped_at,
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    letter.concurrency_key,
    letter.cause,
    letter.error_class
from fencepost.stopped_key as stop
inner join fencepost.dead_letter as letter on letter.id = stop.letter_id
inner join fencepost.route on route.route_id = letter.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
where namespace.name = coalesce($1::text, namespace.name)
order by stop.stopped_at, stop.letter_id
limit $2::bigint
