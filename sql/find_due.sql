-- Every lane (route, priority) that has ready rows, with the milliseconds until its first row is due (0 or less:
-- due now) and the id of that row. A skip scan: one index probe a lane, whatever the backlog.
with recursive lane as (
    (
        select
            live.route_id,
            live.priority,
            live.visible_after,
            live.id
        from fencepost.live
        where live.state = 0 and live.hold = 0
        order by live.route_id, live.priority, live.visible_after, live.id
        limit 1
    )

    union all

    select
        following.route_id,
        following.priority,
        following.visible_after,
        following.id
    from lane
    cross join lateral (
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
)

select
    lane.route_id,
    lane.priority,
    lane.id as head,
    ceil(extract(epoch from lane.visible_after - statement_timestamp()) * 1000)::bigint as due_in_ms
from lane
