-- The plain batch: many tasks of one address, of JSON or of bytes, at one priority, with nothing else. A call in bulk
-- is mostly of that kind, and what a batch with every option goes through costs half as much again as this one.

set local lock_timeout = '5s';

-- Stable, as the conversions in it count as stable: that lets it be inlined, and no call be set up for each payload.
create or replace function fencepost.normal_json(given bytea) returns bytea
language sql stable strict parallel safe
as $$ select convert_to(convert_from(given, 'UTF8')::jsonb::text, 'UTF8') $$;

-- Writes a plain batch and answers the ids in the order of the payloads; null, with nothing written, where it is not
-- that plain after all, as put_plain_task does for one.
create function fencepost.put_plain_tasks(
    namespace text, task_queue text, task_type text, payload bytea[], content_type text, priority int
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    known record;
    ids bigint[];
    enqueued timestamptz;
begin
    select
        route.route_id,
        limits.payload_bytes,
        owner.require_declared_queues and not route.declared as is_undeclared
    into known
    from fencepost.namespace as owner
    inner join fencepost.route on route.namespace_id = owner.namespace_id
    cross join fencepost.limits
    where
        owner.name = namespace
        and route.task_queue = task_queue
        and route.task_type = task_type
        and route.node = '';
    if not found or known.is_undeclared or priority not between 0 and 3 then
        return null;
    elsif content_type = 'application/json' then
        begin
            payload := array(
                select fencepost.normal_json(given.body)
                from unnest(payload) with ordinality as given (body, ordinal)
                order by given.ordinal
            );
        exception
            when data_exception or program_limit_exceeded then
                return null;
        end;
    elsif content_type is distinct from 'application/octet-stream' then
        return null;
    end if;
    if
        exists (
            select from unnest(payload) as given (body)
            where given.body is null or octet_length(given.body) > known.payload_bytes
        )
    then
        return null;
    end if;
    ids := fencepost.new_ids(cardinality(payload));
    enqueued := clock_timestamp();
    insert into fencepost.task (id, origin, enqueued_at, route_id, content_type, payload)
    select given.id, given.id, enqueued, known.route_id, content_type, given.body
    from unnest(ids, payload) as given (id, body);
    insert into fencepost.live (id, route_id, priority, visible_after)
    select given.id, known.route_id, priority, enqueued
    from unnest(ids) as given (id);
    if fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', known.route_id::text);
    end if;
    return ids;
end
$$;

-- Whether an array has the same value for every task.
create function fencepost.is_one_value(given anyarray, tasks int) returns boolean
language sql immutable parallel safe
as $$ select cardinality(given) in (1, tasks) and given[1] = all(given) $$;

create or replace function fencepost.enqueue_many(
    task_queue text[],
    task_type text[],
    payload bytea[],
    content_type text[] default null,
    namespace text[] default null,
    dispatch_key text[] default null,
    delay interval[] default null,
    run_at timestamptz[] default null,
    priority int[] default null,
    node text[] default null,
    max_attempts int[] default null,
    run_timeout interval[] default null,
    heartbeat_timeout interval[] default null,
    schedule_to_start interval[] default null,
    settle text[] default null,
    concurrency_key text[] default null,
    labels jsonb[] default null,
    options jsonb[] default null
) returns table (ordinal bigint, task_id bigint, created boolean, answer text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    tasks int := cardinality(payload);
    ids bigint[];
begin
    if
        tasks between 1 and 100000
        and fencepost.is_one_value(task_queue, tasks)
        and fencepost.is_one_value(task_type, tasks)
        and (content_type is null or fencepost.is_one_value(content_type, tasks))
        and (namespace is null or fencepost.is_one_value(namespace, tasks))
        and (priority is null or fencepost.is_one_value(priority, tasks))
        and num_nonnulls(
            dispatch_key, delay, run_at, node, max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle,
            concurrency_key, labels, options
        ) = 0
    then
        ids := fencepost.put_plain_tasks(
            coalesce(namespace[1], 'default'), task_queue[1], task_type[1], payload,
            coalesce(content_type[1], 'application/json'), coalesce(priority[1], 1)
        );
        if ids is not null then
            return query
            select put.ordinal, put.id, true, 'created'
            from unnest(ids) with ordinality as put (id, ordinal);
            return;
        end if;
    end if;
    return query
    select put.ordinal, put.task_id, put.created, put.answer
    from fencepost.put_tasks(
        task_queue, task_type, payload, content_type, namespace, dispatch_key, delay, run_at, priority, node,
        max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options,
        null, null, null, 0::smallint
    ) as put;
end
$$;
