-- Routes that have something unfinished: $1 how many at most. Skip scans over the indexes of what waits, what is held
-- and what is claimed: a probe a route, whatever the backlog, and nothing for routes without tasks.
with recursive waiting as (
    (
        select
            1 as place,
            live.route_id
        from fencepost.live
        where live.state = 0 and live.hold = 0
        order by live.route_id
        limit 1
    )

    union all

    select
        waiting.place + 1,
        following.route_id
    from waiting
    cross join
        lateral (
            select live.route_id
            from fencepost.live
            where live.state = 0 and live.hold = 0 and live.route_id > waiting.route_id
            order by live.route_id
            limit 1
        ) as following
    where waiting.place < $1::int
),

held as (
    (
        select
            1 as place,
            live.route_id
        from fencepost.live
        where live.hold <> 0
        order by live.route_id
        limit 1
    )

    union all

    select
        held.place + 1,
        following.route_id
    from held
    cross join
        lateral (
            select live.route_id
            from fencepost.live
            where live.hold <> 0 and live.route_id > held.route_id
            order by live.route_id
            limit 1
        ) as following
    where held.place < $1::int
),

claimed as (
    (
        select
            1 as place,
            live.dispatcher,
            live.route_id
        from fencepost.live
        where live.dispatcher is not null
        order by live.dispatcher, live.route_id
        limit 1
    )

    union all

    select
        claimed.place + 1,
        following.dispatcher,
        following.route_id
    from claimed
    cross join
        lateral (
            select
                live.dispatcher,
                live.route_id
            from fencepost.live
            where
                live.dispatcher is not null
                and (live.dispatcher, live.route_id) > (claimed.dispatcher, claimed.route_id)
            order by live.dispatcher, live.route_id
            limit 1
        ) as following
    where claimed.place < $1::int
)

select claimed.route_id from claimed
union
select waiting.route_id from waiting
union
select held.route_id from held
limit $1::int
