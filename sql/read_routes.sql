-- Routes by number, each setting the route's own, else its namespace's, else null: $1 routes.
select
    route.route_id,
    route.namespace_id,
    namespace.name as namespace,
    namespace.weight,
    namespace.max_in_flight as namespace_quota,
    route.max_in_flight as route_quota,
    namespace.rate_tasks is not null as namespace_rated,
    route.rate_tasks is not null as route_rated,
    route.task_queue,
    route.task_type,
    route.node,
    namespace.placement::text as placement,
    route.unserved = 'strict' as strict,
    namespace.require_declared_queues and not route.declared as undeclared,
    coalesce(route.max_attempts, namespace.max_attempts) as max_attempts,
    coalesce(route.backoff_base_ms, namespace.backoff_base_ms) as backoff_base_ms,
    coalesce(route.backoff_multiplier, namespace.backoff_multiplier) as backoff_multiplier,
    coalesce(route.backoff_max_ms, namespace.backoff_max_ms) as backoff_max_ms
from fencepost.route
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
where route.route_id = any($1::int[])
