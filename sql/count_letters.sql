-- Counts the dead letters that nobody has redriven: $1 how many of the newest of each route are looked at, $2 how many
-- routes. Answers namespace, task queue, how many were looked at and how many count, a row a route. A skip scan finds
-- the routes, whatever the number of letters.
with recursive home as (
    (
        select
            1 as place,
            letter.route_id
        from fencepost.dead_letter as letter
        order by letter.route_id
        limit 1
    )

    union all

    select
        home.place + 1,
        following.route_id
    from home
    cross join
        lateral (
            select letter.route_id
            from fencepost.dead_letter as letter
            where letter.route_id > home.route_id
            order by letter.route_id
            limit 1
        ) as following
    where home.place < $2::int
)

select
    namespace.name as namespace,
    route.task_queue,
    counted.looked_at,
    counted.letters
from home
inner join fencepost.route on route.route_id = home.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
cross join
    lateral (
        select
            count(*) as looked_at,
            count(*) filter (where newest.redriven_as is null) as letters
        from (
            select letter.redriven_as
            from fencepost.dead_letter as letter
            where letter.route_id = home.route_id
            order by letter.dead_at desc
            limit $1::bigint
        ) as newest
    ) as counted
