-- The routes that are judged to be served by nobody, the longest first: $1 how many at most.
select
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    unserved.reason,
    fencepost.rfc3339(unserved.since) as since
from fencepost.unserved
inner join fencepost.route on route.route_id = unserved.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
order by unserved.since, unserved.route_id
limit $1::bigint
