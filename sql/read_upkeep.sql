-- Whether the schema is looked after: replicas that are alive, the names of those that nobody has declared dead though
-- they have been silent for $1 seconds, days until ids run out of partitions, and queues that nobody serves.
select
    (
        select count(*)
        from fencepost.dispatcher
        where
            dispatcher.dead_at is null
            and dispatcher.heartbeat_at >= clock_timestamp() - $1::bigint * interval '1 second'
    ) as alive,
    array(
        select dispatcher.name
        from fencepost.dispatcher
        where
            dispatcher.dead_at is null
            and dispatcher.heartbeat_at < clock_timestamp() - $1::bigint * interval '1 second'
        order by dispatcher.name
        limit 10
    ) as silent,
    (
        select (horizon.end_ms - fencepost.id_ms(clock_timestamp())) / 86400000.0
        from fencepost.horizon
    )::float8 as days_ahead,
    (
        select count(*)
        from fencepost.unserved
    ) as unserved
