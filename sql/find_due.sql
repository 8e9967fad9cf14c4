-- Lanes (route, priority) that have ready rows, at most $3 of them, from behind route $1 and priority $2 on, in order:
-- when the first row of each is due, its id, the milliseconds until then (0 or less: due now), the clock, and whether
-- a pause binds the lane. A skip scan: one index probe a lane, whatever the backlog; lanes without a ready row cost
-- nothing.
with recursive lane as (
    (
        select
            1 as place,
            live.route_id,
            live.priority,
            live.visible_after,
            live.id
        from fencepost.live
        where
            live.state = 0
            and live.hold = 0
            and (live.route_id, live.priority) > ($1::int, $2::smallint)
        order by live.route_id, live.priority, live.visible_after, live.id
        limit 1
    )

    union all

    select
        lane.place + 1,
        following.route_id,
        following.priority,
        following.visible_after,
        following.id
    from lane
    cross join
        lateral (
            select
                live.route_id,
                live.priority,
                live.visible_after,
                live.id
            from fencepost.live
            where
                live.state = 0
                and live.hold = 0
                and (live.route_id, live.priority) > (lane.route_id, lane.priority)
            order by live.route_id, live.priority, live.visible_after, live.id
            limit 1
        ) as following
    where lane.place < $3::int
)

select
    lane.route_id,
    lane.priority,
    lane.id as head,
    lane.visible_after,
    ceil(extract(epoch from lane.visible_after - statement_timestamp()) * 1000)::bigint as due_in_ms,
    statement_timestamp() as at,
    exists (select from fencepost.pause)
    -- A scalar subquery: no plan that was made while there were few routes looks for all that are paused.
    and (
        select paused_route.route_id
        from fencepost.paused_route
        where paused_route.route_id = lane.route_id
        limit 1
    ) is not null as paused
from lane
