-- Lists routes by name: $1 namespace, $2 task queue (null for any), $3 the number at which counting stops, $4 how many
-- routes, $5 routes (null for any), $6 to $9 namespace, queue, type and node that all are behind (null for the first
-- page; no effect on $5). Of each: `ready` tasks are due, `later` ones are not (with those that are to wait
-- for their key then), `held_*` stand outside of the line by a bit of their hold, `claimed` ones have a replica;
-- `oldest_ms` is how long the first ready one has been due; `full_at` is when the bucket of its rate will be full,
-- `namespace_full_at` that of its namespace; `unserved_*` say that nobody serves it, where that has been judged, and
-- `node_seen` when a worker was last on the node that it is pinned to. A count ends at $3 a priority or more; then an
-- estimate by the statistics goes with it. Counts walk the claim index, the first of each priority is one probe, what
-- is claimed is one probe a replica. There may be very many routes, and a plan that holds for every argument finds them
-- by an index only where each way to ask is a query of its own; the others cost nothing then.
with listed as materialized (
    (
        select found.route_id
        from unnest($5::int[]) as wanted (route_id)
        cross join
            lateral (
                select route.*
                from fencepost.route
                where route.route_id = wanted.route_id
                limit 1
            ) as found
        inner join fencepost.namespace on namespace.namespace_id = found.namespace_id
        where
            namespace.name = coalesce($1::text, namespace.name)
            and found.task_queue = coalesce($2::text, found.task_queue)
        order by namespace.name, found.task_queue, found.task_type, found.node
        limit $4::bigint
    )

    union

    (
        select mine.route_id
        from fencepost.namespace
        cross join
            lateral (
                select route.*
                from fencepost.route
                where
                    route.namespace_id = namespace.namespace_id
                    and route.task_queue = coalesce($2::text, route.task_queue)
                    and (route.task_queue, route.task_type, route.node)
                    > (coalesce($7::text, ''), coalesce($8::text, ''), coalesce($9::text, ''))
                order by route.task_queue, route.task_type, route.node
                limit $4::bigint
            ) as mine
        where $5::int[] is null and namespace.name = $1::text
        order by namespace.name, mine.task_queue, mine.task_type, mine.node
        limit $4::bigint
    )

    union

    (
        select mine.route_id
        from fencepost.namespace
        cross join
            lateral (
                select route.*
                from fencepost.route
                where
                    route.namespace_id = namespace.namespace_id
                    and route.task_queue = coalesce($2::text, route.task_queue)
                    -- Routes of a later namespace are all behind the key.
                    and (route.task_queue, route.task_type, route.node)
                    > (
                        case when namespace.name = $6::text then $7::text else '' end,
                        case when namespace.name = $6::text then $8::text else '' end,
                        case when namespace.name = $6::text then $9::text else '' end
                    )
                order by route.task_queue, route.task_type, route.node
                limit $4::bigint
            ) as mine
        where $5::int[] is null and $1::text is null and namespace.name >= coalesce($6::text, '')
        order by namespace.name, mine.task_queue, mine.task_type, mine.node
        limit $4::bigint
    )
)

select
    route.route_id,
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    route.declared,
    route.unserved,
    route.max_in_flight,
    route.rate_tasks,
    route.rate_period_ms,
    route.rate_burst,
    own.tasks as bucket_tasks,
    own.period_ms as bucket_period_ms,
    own.burst as bucket_burst,
    own.full_at,
    namespace.rate_tasks as namespace_rate_tasks,
    namespace.rate_period_ms as namespace_rate_period_ms,
    namespace.rate_burst as namespace_rate_burst,
    above.tasks as namespace_bucket_tasks,
    above.period_ms as namespace_bucket_period_ms,
    above.burst as namespace_bucket_burst,
    above.full_at as namespace_full_at,
    statement_timestamp() as at,
    route.key_limit,
    route.key_rate_tasks,
    route.key_rate_period_ms,
    route.key_rate_burst,
    route.on_dead_key,
    exists (select from fencepost.pause)
    and (
        select paused_route.route_id
        from fencepost.paused_route
        where paused_route.route_id = route.route_id
        limit 1
    ) is not null as paused,
    ready.tasks as ready,
    later.tasks + held.later as later,
    case when ready.tasks >= $3::bigint then fencepost.estimate_ready(route.route_id, false) end as ready_estimate,
    case when later.tasks >= $3::bigint then fencepost.estimate_ready(route.route_id, true) end as later_estimate,
    held.by_workflow as held_workflow,
    held.by_key as held_key,
    held.by_throttle as held_throttle,
    claimed.tasks as claimed,
    floor(extract(epoch from statement_timestamp() - oldest.visible_after) * 1000)::bigint as oldest_ms,
    unserved.reason as unserved_reason,
    unserved.since as unserved_since,
    node.seen_at as node_seen
from listed
inner join fencepost.route on route.route_id = listed.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
left join fencepost.bucket as own on own.kind = 2 and own.number = route.route_id
left join fencepost.bucket as above on above.kind = 1 and above.number = route.namespace_id
left join fencepost.node on node.name = route.node
left join fencepost.unserved on unserved.route_id = route.route_id
cross join
    lateral (
        select count(*) as tasks
        from generate_series(0, 3) as lane (priority)
        cross join lateral (
            select 1
            from fencepost.live
            where
                live.state = 0
                and live.hold = 0
                and live.route_id = route.route_id
                and live.priority = lane.priority
                and live.visible_after <= statement_timestamp()
            limit $3::bigint
        ) as waiting
    ) as ready
cross join
    lateral (
        select count(*) as tasks
        from generate_series(0, 3) as lane (priority)
        cross join lateral (
            select 1
            from fencepost.live
            where
                live.state = 0
                and live.hold = 0
                and live.route_id = route.route_id
                and live.priority = lane.priority
                and live.visible_after > statement_timestamp()
            limit $3::bigint
        ) as waiting
    ) as later
cross join
    lateral (
        select min(head.visible_after) as visible_after
        from generate_series(0, 3) as lane (priority)
        cross join lateral (
            select live.visible_after
            from fencepost.live
            where
                live.state = 0
                and live.hold = 0
                and live.route_id = route.route_id
                and live.priority = lane.priority
                and live.visible_after <= statement_timestamp()
            order by live.visible_after, live.id
            limit 1
        ) as head
    ) as oldest
cross join
    lateral (
        select
            count(*) filter (where stopped.hold & 1 <> 0) as by_workflow,
            count(*) filter (where stopped.hold & 2 <> 0 and not stopped.is_later) as by_key,
            count(*) filter (where stopped.hold & 4 <> 0) as by_throttle,
            count(*) filter (where stopped.hold & 7 = 2 and stopped.is_later) as later
        from (
            select
                live.hold,
                live.visible_after > statement_timestamp() as is_later
            from fencepost.live
            where live.hold <> 0 and live.route_id = route.route_id
            limit $3::bigint
        ) as stopped
    ) as held
cross join
    lateral (
        select count(*) as tasks
        from fencepost.dispatcher
        cross join lateral (
            select 1
            from fencepost.live
            where live.dispatcher = dispatcher.id and live.route_id = route.route_id
        ) as mine
    ) as claimed
order by namespace.name, route.task_queue, route.task_type, route.node
