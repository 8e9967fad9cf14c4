-- Pauses an address: $1 namespace, $2 task queue, $3 task type, $4 node (null for any), $5 why, $6 by whom, $7 whether
-- everything is meant, $8 whether what runs is to stop. Answers whether it is a new one.
select
    fencepost.pause(
        namespace => $1::text,
        task_queue => $2::text,
        task_type => $3::text,
        node => $4::text,
        reason => $5::text,
        paused_by => $6::text,
        everything => $7::boolean,
        cancel_running => $8::boolean
    ) as created
