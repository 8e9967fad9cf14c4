-- Due tasks of routes, those first that are first in their lanes: $1 routes, $2 how many.
select
    due.id,
    due.route_id,
    due.attempt,
    due.epoch,
    due.fence
from unnest($1::int[]) as wanted (route_id)
cross join
    lateral (
        select live.*
        from fencepost.live
        where
            live.state = 0
            and live.hold = 0
            and live.route_id = wanted.route_id
            and live.visible_after <= statement_timestamp()
        order by live.priority, live.visible_after, live.id
        limit $2::int
    ) as due
limit $2::int
