-- Running tasks that a pause asks to stop and that nobody has asked yet, in order: $1 how many. The claimed rows are
-- read first, since there are no more of them than slots.
with claimed as materialized (
    select
        live.id,
        live.route_id
    from fencepost.live
    where live.dispatcher is not null and not live.cancel_requested
)

select claimed.id
from claimed
cross join
    lateral (
        select paused_route.route_id
        from fencepost.paused_route
        where paused_route.route_id = claimed.route_id and paused_route.cancel_running
        limit 1
    ) as bound
order by claimed.id
limit $1::int
