-- Lists routes by name: $1 namespace, $2 task queue (null for any), $3 the number at which counting stops, $4 how
-- many routes. `ready` counts due tasks, `claimed` those with a replica; the claimed ones of all routes are read once,
-- since there are no more of them than slots.
with claimed as materialized (
    select
        live.route_id,
        count(*) as tasks
    from fencepost.live
    where live.dispatcher is not null
    group by live.route_id
)

select
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    route.declared,
    route.unserved,
    route.paused is not null or namespace.paused is not null as paused,
    ready.tasks as ready,
    coalesce((select claimed.tasks from claimed where claimed.route_id = route.route_id), 0) as claimed
from fencepost.route
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
cross join
    lateral (
        select count(*) as tasks
        from (
            select 1
            from fencepost.live
            where
                live.state = 0
                and live.hold = 0
                and live.route_id = route.route_id
                and live.visible_after <= statement_timestamp()
            limit $3::bigint
        ) as due
    ) as ready
where
    ($1::text is null or namespace.name = $1::text)
    and ($2::text is null or route.task_queue = $2::text)
order by namespace.name, route.task_queue, route.task_type, route.node
limit $4::bigint
