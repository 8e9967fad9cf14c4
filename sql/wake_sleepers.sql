-- Tells the other replicas, where one sleeps, that rows of these routes were put back: $1 routes, $2 the caller's
-- own dispatcher. Put-back rows may lie below a low-water mark, so the payload says so.
select pg_notify('fencepost', returned.route_id::text || ' back')
from unnest($1::int[]) as returned (route_id)
where
    exists (
        select from fencepost.dispatcher
        where
            dispatcher.sleeping
            and dispatcher.dead_at is null
            and dispatcher.id <> $2::bigint
    )
