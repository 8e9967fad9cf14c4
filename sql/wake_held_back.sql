-- Tells the replicas that a quota holds back, where there is one, that tasks of these routes have ended: $1 routes,
-- $2 the caller's own dispatcher, which knows.
select pg_notify('fencepost', freed.route_id::text || ' freed')
from unnest($1::int[]) as freed (route_id)
where
    exists (
        select from fencepost.dispatcher
        where
            dispatcher.held_back
            and dispatcher.dead_at is null
            and dispatcher.id <> $2::bigint
    )
