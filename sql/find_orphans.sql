-- Claimed rows whose owner is dead: $1 how many. `gentle` is true where the owner had said that it drains, so that
-- its end counts as no loss. Owners are looked up one by one, so that the rows of the living are not read; ids below
-- the smallest kept dispatcher are owners that left no row. A row may be adopted right after this snapshot: who acts
-- on it names its owner.
select
    orphan.id,
    orphan.epoch,
    orphan.fence,
    orphan.dispatcher,
    orphan.gentle
from (
    select
        held.*,
        dispatcher.draining as gentle
    from fencepost.dispatcher
    cross join
        lateral (
            select
                live.id,
                live.epoch,
                live.fence,
                live.dispatcher
            from fencepost.live
            where live.dispatcher = dispatcher.id
            limit $1::int
        ) as held
    where dispatcher.dead_at is not null

    union all

    select
        live.id,
        live.epoch,
        live.fence,
        live.dispatcher,
        false as gentle
    from fencepost.live
    where live.dispatcher < (select min(dispatcher.id) from fencepost.dispatcher)
) as orphan
limit $1::int
