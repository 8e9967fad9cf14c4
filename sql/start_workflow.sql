-- Stages a workflow with its members, all or nothing, by the function that every producer calls: $1 mode, $2 name,
-- $3 namespace, $4 continuation as the bytes of a JSON object, $5 the caller's key, $6 whether it starts paused, $7 who
-- says so; $8 to $24 the members as enqueue_tasks takes tasks, without namespaces.
select
    started.workflow_id,
    started.run_id,
    started.state,
    started.created,
    started.task_ids
from fencepost.start_workflow(
        mode => $1::text,
        name => $2::text,
        namespace => $3::text,
        continuation => (
            fencepost.read_objects(array[$4::bytea], 'FP033', 'invalid_continuation', 'continuation')
        )[1],
        workflow_key => $5::text,
        paused => $6::boolean,
        ordered_by => $7::text,
        task_queue => $8::text[],
        task_type => $9::text[],
        payload => $10::bytea[],
        content_type => $11::text[],
        dispatch_key => $12::text[],
        delay => fencepost.read_milliseconds($13::bigint[]),
        run_at => fencepost.read_times($14::text[], 'run_at'),
        priority => $15::int[],
        node => $16::text[],
        max_attempts => $17::int[],
        run_timeout => fencepost.read_milliseconds($18::bigint[]),
        heartbeat_timeout => fencepost.read_milliseconds($19::bigint[]),
        schedule_to_start => fencepost.read_milliseconds($20::bigint[]),
        settle => $21::text[],
        concurrency_key => $22::text[],
        labels => fencepost.read_objects($23::bytea[], 'FP008', 'invalid_labels', 'labels'),
        options => fencepost.read_objects($24::bytea[], 'FP009', 'unknown_option', 'options')
    ) as started
