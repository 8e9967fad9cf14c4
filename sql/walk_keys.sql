-- Concurrency keys that have tasks waiting for them, at most $2 from the number $1 on, in order, and whether one of
-- these may go. A skip scan: a few index probes a key, however many wait.
with recursive held as (
    (
        select
            1 as place,
            live.key_hash
        from fencepost.live
        where live.key_hash >= $1::bigint and live.hold & 2 <> 0
        order by live.key_hash
        limit 1
    )

    union all

    select
        held.place + 1,
        following.key_hash
    from held
    cross join
        lateral (
            select live.key_hash
            from fencepost.live
            where live.key_hash > held.key_hash and live.hold & 2 <> 0
            order by live.key_hash
            limit 1
        ) as following
    where held.place < $2::int
)

select
    held.key_hash,
    coalesce(
        head.visible_after <= statement_timestamp()
        and head.key_limit > (
            select count(*)
            from (
                select 1
                from fencepost.live
                where live.key_hash = held.key_hash and live.hold & 2 = 0
                limit head.key_limit
            ) as let_go
        )
        and (
            select stop.letter_id
            from fencepost.stopped_key as stop
            where stop.key_hash = held.key_hash
            limit 1
        ) is null,
        false
    ) as has_room
from held
left join lateral (
    select
        live.visible_after,
        route.key_limit
    from fencepost.live
    inner join fencepost.route on route.route_id = live.route_id
    where live.key_hash = held.key_hash and live.hold & 2 <> 0
    order by live.visible_after, live.id
    limit 1
) as head on true
