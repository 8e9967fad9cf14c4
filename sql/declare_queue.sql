-- Declares a route: $1 task queue, $2 task type, $3 namespace, $4 node (null for none), $5 what becomes of its tasks
-- while nobody serves it, $6 quota (-1 lifts it); null keeps what is there of these two.
select
    fencepost.declare_queue(
        task_queue => $1::text,
        task_type => $2::text,
        namespace => $3::text,
        node => $4::text,
        unserved => $5::text,
        max_in_flight => $6::int
    ) as route_id
