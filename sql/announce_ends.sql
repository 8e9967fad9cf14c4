-- Tells the other replicas that tasks have ended, where somebody waits at one: $1 the caller's own dispatcher.
select pg_notify('fencepost', 'ended')
where
    exists (
        select from fencepost.dispatcher
        where
            dispatcher.awaiting
            and dispatcher.dead_at is null
            and dispatcher.id <> $1::bigint
    )
