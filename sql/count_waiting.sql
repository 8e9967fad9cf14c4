-- What waits on routes: $1 routes, $2 the number at which counting stops. Answers, for each with something due, how
-- many tasks (at most $2), the milliseconds since the first of them was due, since when nobody serves it, where that
-- has been judged, and when a worker was last on the node that it is pinned to. The counts walk the claim index; the
-- first of each priority is one probe.
select
    wanted.route_id,
    counted.tasks,
    floor(extract(epoch from statement_timestamp() - oldest.visible_after) * 1000)::bigint as oldest_ms,
    unserved.since,
    node.seen_at as node_seen
from unnest($1::int[]) as wanted (route_id)
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
                and live.route_id = wanted.route_id
                and live.priority = lane.priority
                and live.visible_after <= statement_timestamp()
            order by live.visible_after, live.id
            limit 1
        ) as head
    ) as oldest
cross join
    lateral (
        select count(*) as tasks
        from (
            select 1
            from fencepost.live
            where
                live.state = 0
                and live.hold = 0
                and live.route_id = wanted.route_id
                and live.visible_after <= statement_timestamp()
            limit $2::bigint
        ) as due
    ) as counted
left join fencepost.route on route.route_id = wanted.route_id
left join fencepost.node on node.name = route.node
left join fencepost.unserved on unserved.route_id = wanted.route_id
where oldest.visible_after is not null
order by oldest.visible_after
