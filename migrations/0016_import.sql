-- Bulk import by COPY: into a table of the producer's own, which a function turns into tasks.

set local lock_timeout = '5s';

-- A row of such a table, with the parameters of enqueue: `create temp table batch of fencepost.import_task`. A task has
-- a payload, which is JSON, or bytes of any content type.
create type fencepost.import_task as (
    task_queue text,
    task_type text,
    payload text,
    bytes bytea,
    content_type text,
    namespace text,
    dispatch_key text,
    delay interval,
    run_at timestamptz,
    priority int,
    node text,
    max_attempts int,
    run_timeout interval,
    heartbeat_timeout interval,
    schedule_to_start interval,
    settle text,
    concurrency_key text,
    labels jsonb,
    options jsonb
);

-- Enqueues a task for each row of a table of import_task, in the order in which they were copied, all or none. Answers
-- how many were created, are there already (existing), and have replaced another one. It reads a few pages at a time,
-- so memory does not grow with the rows. A refusal names the row by its place in the file.
create function fencepost.import_tasks(
    staged regclass, out created bigint, out existing bigint, out replaced bigint
)
language plpgsql
as $$
declare
    -- some 1,000 small rows, as many as bring the most in one call
    pages constant int := 32;
    -- A column that is empty in all of these rows is null: nothing is paid for what nobody gives.
    read_batch constant text := (
        select
            'select count(*) as tasks, array_agg(coalesce(bytes, convert_to(payload, ''UTF8''))) as bodies, '
            || 'array_agg(coalesce(content_type, '
            || 'case when bytes is null then ''application/json'' else ''application/octet-stream'' end)) as types, '
            || string_agg(format('case when count(%1$I) > 0 then array_agg(%1$I) end as %1$I', field.attname), ', ')
            || ' from %s where ctid >= %L and ctid < %L'
        from pg_attribute as field
        inner join pg_type as row_type on row_type.typrelid = field.attrelid
        where row_type.oid = 'fencepost.import_task'::regtype and field.attname <> all('{payload,bytes,content_type}')
    );
    last_page bigint;
    page bigint := 0;
    rows_before bigint := 0;
    given record;
    answers record;
    refusal text;
    slug text;
    field text;
begin
    if (select known.reloftype from pg_class as known where known.oid = staged) <> 'fencepost.import_task'::regtype then
        raise exception using
            errcode = 'wrong_object_type',
            message = format('%s is no table of fencepost.import_task.', staged),
            hint = 'create temp table batch of fencepost.import_task';
    end if;
    created := 0;
    existing := 0;
    replaced := 0;
    last_page := pg_relation_size(staged) / current_setting('block_size')::int;
    while page < last_page loop
        execute format(read_batch, staged, format('(%s,0)', page), format('(%s,0)', page + pages)) into given;
        if given.tasks > 0 then
            select
                count(*) filter (where put.answer = 'created') as created,
                count(*) filter (where put.answer = 'existing') as existing,
                count(*) filter (where put.answer = 'replaced') as replaced
            into answers
            from fencepost.enqueue_many(
                task_queue => given.task_queue, task_type => given.task_type, payload => given.bodies,
                content_type => given.types, namespace => given.namespace,
                dispatch_key => given.dispatch_key, delay => given.delay, run_at => given.run_at,
                priority => given.priority, node => given.node, max_attempts => given.max_attempts,
                run_timeout => given.run_timeout, heartbeat_timeout => given.heartbeat_timeout,
                schedule_to_start => given.schedule_to_start, settle => given.settle,
                concurrency_key => given.concurrency_key, labels => given.labels, options => given.options
            ) as put;
            created := created + answers.created;
            existing := existing + answers.existing;
            replaced := replaced + answers.replaced;
        end if;
        rows_before := rows_before + given.tasks;
        page := page + pages;
    end loop;
exception
    -- One handler around all of it: a savepoint for each batch would cost everybody's snapshots.
    when others then
        if sqlstate not like 'FP%' then
            raise;
        end if;
        get stacked diagnostics refusal = message_text, slug = pg_exception_detail, field = column_name;
        raise exception using
            errcode = sqlstate,
            message = format(
                'task %s: %s',
                rows_before + coalesce(substring(refusal from '^task ([0-9]+): ')::bigint, 1),
                regexp_replace(refusal, '^task [0-9]+: ', '')
            ),
            detail = slug,
            column = field;
end
$$;
