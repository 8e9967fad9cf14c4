-- Tasks that have not started by their deadline for that, the latest first: $1 how many.
select
    live.id,
    live.route_id,
    live.attempt,
    live.epoch,
    live.fence,
    live.hold,
    live.visible_after,
    live.visible_after > statement_timestamp() as waits
from fencepost.live
where live.state = 0 and live.start_by < statement_timestamp()
order by live.start_by
limit $1::int
