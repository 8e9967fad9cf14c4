-- Declares a route: $1 task queue, $2 task type, $3 namespace, $4 node (null for none), $5 what becomes of its tasks
-- while nobody serves it, $6 quota (-1 lifts it), $7 how many of its tasks with one concurrency key are let go at a
-- time, $8 what a dead letter at the head of a key does (skip, stop); null keeps what is there of these four.
select
    fencepost.declare_queue(
        task_queue => $1::text,
        task_type => $2::text,
        namespace => $3::text,
        node => $4::text,
        unserved => $5::text,
        max_in_flight => $6::int,
        key_limit => $7::int,
        on_dead_key => $8::text
    ) as route_id
