-- Claimed rows whose owner is dead, oldest owner first: $1 how many. `gentle` is true where the owner had said that
-- it drains, so that its end counts as no loss. Owners are named by an array and never by an anti-join, which would
-- also take rows adopted since its snapshot; ids below the smallest kept dispatcher are owners that left no row.
select
    live.id,
    live.epoch,
    live.fence,
    live.dispatcher,
    coalesce(
        (select dispatcher.draining from fencepost.dispatcher where dispatcher.id = live.dispatcher), false
    ) as gentle
from fencepost.live
where
    live.dispatcher = any(
        array(select dispatcher.id from fencepost.dispatcher where dispatcher.dead_at is not null)
    )
    or live.dispatcher < (select min(dispatcher.id) from fencepost.dispatcher)
limit $1::int
