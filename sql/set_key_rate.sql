-- Sets how many tasks of a route with the same concurrency key may start in a time: $1 task queue, $2 task type,
-- $3 namespace, $4 node (null for none), $5 rate (none lifts it), $6 burst. null keeps what is there.
select
    fencepost.set_key_rate(
        task_queue => $1::text,
        task_type => $2::text,
        namespace => $3::text,
        node => $4::text,
        rate => $5::text,
        burst => $6::int
    ) as route_id
