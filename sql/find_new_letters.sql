-- The last dead letters, for those who are told of new ones: $1 milliseconds to look back, $2 how many at most.
select
    letter.id,
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    letter.cause,
    letter.error_class
from (
    select
        dead_letter.id,
        dead_letter.dead_at,
        dead_letter.route_id,
        dead_letter.cause,
        dead_letter.error_class
    from fencepost.dead_letter
    where dead_letter.dead_at > statement_timestamp() - $1::bigint * interval '1 millisecond'
    order by dead_letter.dead_at desc, dead_letter.id desc
    limit $2::bigint
) as letter
inner join fencepost.route on route.route_id = letter.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
order by letter.dead_at, letter.id
