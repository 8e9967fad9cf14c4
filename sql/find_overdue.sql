-- Claimed rows past their deadline, which their owner has not timed out itself: $1 how many.
select
    live.id,
    live.route_id,
    live.attempt,
    live.epoch,
    live.fence,
    live.dispatcher
from fencepost.live
where
    live.dispatcher is not null
    and live.deadline < statement_timestamp()
limit $1::int
