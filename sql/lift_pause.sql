-- Resumes an address: $1 namespace, $2 task queue, $3 task type, $4 node (null for any), $5 whether everything is
-- meant. Answers since when it was paused.
select
    fencepost.resume(
        namespace => $1::text,
        task_queue => $2::text,
        task_type => $3::text,
        node => $4::text,
        everything => $5::boolean
    ) as paused_at
