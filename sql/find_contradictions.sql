-- What must never be, by a look at the first $1 unfinished tasks: how many have also ended, and how many are claimed
-- for a replica that was declared dead more than $2 seconds ago, or that is unknown. Tasks end and move meanwhile, in
-- transactions that this snapshot sees whole or not at all.
select
    count(*) as looked_at,
    count(*) filter (where ended.id is not null) as ended_too,
    count(*) filter (
        where
        looked.state = 1
        and (
            owner.id is null
            or owner.dead_at < statement_timestamp() - $2::bigint * interval '1 second'
        )
    ) as abandoned
from (
    select
        live.id,
        live.state,
        live.dispatcher
    from fencepost.live
    order by live.id
    limit $1::bigint
) as looked
left join fencepost.dispatcher as owner on owner.id = looked.dispatcher
left join lateral (
    select outcome.id
    from fencepost.outcome
    where outcome.id = looked.id
    limit 1
) as ended on true
