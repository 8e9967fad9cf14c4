-- Adds members to a workflow that is not over: $1 workflow; $2 to $18 the members as enqueue_tasks takes tasks, without
-- namespaces. Answers the run and the members' task ids in their order.
select
    added.run_id,
    added.task_ids
from fencepost.add_members(
        workflow => $1::bigint,
        task_queue => $2::text[],
        task_type => $3::text[],
        payload => $4::bytea[],
        content_type => $5::text[],
        dispatch_key => $6::text[],
        delay => fencepost.read_milliseconds($7::bigint[]),
        run_at => fencepost.read_times($8::text[], 'run_at'),
        priority => $9::int[],
        node => $10::text[],
        max_attempts => $11::int[],
        run_timeout => fencepost.read_milliseconds($12::bigint[]),
        heartbeat_timeout => fencepost.read_milliseconds($13::bigint[]),
        schedule_to_start => fencepost.read_milliseconds($14::bigint[]),
        settle => $15::text[],
        concurrency_key => $16::text[],
        labels => fencepost.read_objects($17::bytea[], 'FP008', 'invalid_labels', 'labels'),
        options => fencepost.read_objects($18::bytea[], 'FP009', 'unknown_option', 'options')
    ) as added
