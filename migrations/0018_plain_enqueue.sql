-- The plain enqueue: one task, with nothing but its address, a payload and perhaps a priority. Every door has most of
-- its calls of that kind, and what a batch with every option goes through costs a single task more than its own rows.
-- A function in SQL that can't be inlined is parsed and planned at every call, so that what is called often is plpgsql.

set local lock_timeout = '5s';

create or replace function fencepost.read_milliseconds(given bigint[]) returns interval[]
language plpgsql immutable strict parallel safe
as $$
begin
    return (
        select
            array_agg(
                case
                    when input.ms is not null
                        then least(greatest(input.ms, -1), 1000000000000000) * interval '1 millisecond'
                end
                order by input.ordinal
            )
        from unnest(given) with ordinality as input (ms, ordinal)
    );
end
$$;

-- The same milliseconds as before, by a difference of times: extracting from a time itself counts as stable, and an
-- immutable function over that is not inlined.
create or replace function fencepost.id_ms(at timestamptz) returns bigint
language sql immutable strict parallel safe
as $$ select floor(extract(epoch from at - timestamptz '1970-01-01 00:00:00+00') * 1000)::bigint - 1735689600000 $$;

-- Writes one plain task and answers its id; null, with nothing written, where it is not that plain after all: the route
-- is new, or something is out of bounds. Whoever gets null goes the way of put_tasks, which says what is wrong: no
-- rule stands here alone.
create function fencepost.put_plain_task(
    namespace text, task_queue text, task_type text, payload bytea, content_type text, priority int
) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    known record;
    ms bigint;
    id bigint;
    enqueued timestamptz;
begin
    select
        route.route_id,
        limits.payload_bytes,
        horizon.floor_ms,
        horizon.end_ms,
        owner.require_declared_queues and not route.declared as is_undeclared,
        exists (
            select from fencepost.dispatcher where dispatcher.sleeping and dispatcher.dead_at is null
        ) as somebody_sleeps
    into known
    from fencepost.namespace as owner
    inner join fencepost.route on route.namespace_id = owner.namespace_id
    cross join fencepost.limits
    cross join fencepost.horizon
    where
        owner.name = namespace
        and route.task_queue = task_queue
        and route.task_type = task_type
        and route.node = '';
    if not found or known.is_undeclared or priority not between 0 and 3 then
        return null;
    elsif content_type = 'application/json' then
        begin
            payload := fencepost.normal_json(payload);
        exception
            when data_exception or program_limit_exceeded then
                return null;
        end;
    elsif content_type is distinct from 'application/octet-stream' then
        return null;
    end if;
    if payload is null or octet_length(payload) > known.payload_bytes then
        return null;
    end if;
    ms := greatest(fencepost.id_ms(clock_timestamp()), known.floor_ms);
    if ms >= known.end_ms then
        return null;
    end if;
    id := (ms << 22) | (nextval('fencepost.task_sequence') & 4194303);
    enqueued := clock_timestamp();
    insert into fencepost.task (id, origin, enqueued_at, route_id, content_type, payload)
    values (id, id, enqueued, known.route_id, content_type, payload);
    insert into fencepost.live (id, route_id, priority, visible_after)
    values (id, known.route_id, priority, enqueued);
    if known.somebody_sleeps and current_setting('fencepost.notify', true) is distinct from 'off' then
        perform pg_notify('fencepost', known.route_id::text);
    end if;
    return id;
end
$$;

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
begin
    if
        cardinality(payload) = 1 and task_queue[1] is not null and task_type[1] is not null
        and greatest(
            cardinality(task_queue), cardinality(task_type), cardinality(content_type), cardinality(namespace),
            cardinality(priority)
        ) = 1
        and (content_type is null or content_type[1] is not null)
        and (namespace is null or namespace[1] is not null)
        and (priority is null or priority[1] is not null)
        and num_nonnulls(
            dispatch_key, delay, run_at, node, max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle,
            concurrency_key, labels, options
        ) = 0
    then
        task_id := fencepost.put_plain_task(
            coalesce(namespace[1], 'default'), task_queue[1], task_type[1], payload[1],
            coalesce(content_type[1], 'application/json'), coalesce(priority[1], 1)
        );
        if task_id is not null then
            ordinal := 1;
            created := true;
            answer := 'created';
            return next;
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

create or replace function fencepost.enqueue_bytes(
    task_queue text,
    task_type text,
    payload bytea,
    content_type text default 'application/octet-stream',
    namespace text default 'default',
    dispatch_key text default null,
    delay interval default null,
    run_at timestamptz default null,
    priority int default 1,
    node text default null,
    max_attempts int default null,
    run_timeout interval default null,
    heartbeat_timeout interval default null,
    schedule_to_start interval default null,
    settle text default 'completed',
    concurrency_key text default null,
    labels jsonb default '{}',
    options jsonb default '{}'
) returns table (task_id bigint, created boolean, answer text)
language plpgsql
as $$
#variable_conflict use_variable
begin
    if
        num_nonnulls(
            dispatch_key, delay, run_at, node, max_attempts, run_timeout, heartbeat_timeout, schedule_to_start,
            concurrency_key, nullif(settle, 'completed'), nullif(labels, '{}'), nullif(options, '{}')
        ) = 0
    then
        task_id := fencepost.put_plain_task(
            coalesce(namespace, 'default'), task_queue, task_type, payload, coalesce(content_type, 'application/json'), coalesce(priority, 1)
        );
        if task_id is not null then
            created := true;
            answer := 'created';
            return next;
            return;
        end if;
    end if;
    return query
    select enqueued.task_id, enqueued.created, enqueued.answer
    from fencepost.enqueue_many(
        array[task_queue], array[task_type], array[payload], array[content_type], array[namespace],
        array[dispatch_key], array[delay], array[run_at], array[priority], array[node], array[max_attempts],
        array[run_timeout], array[heartbeat_timeout], array[schedule_to_start], array[settle],
        array[concurrency_key], array[labels], array[options]
    ) as enqueued;
end
$$;

create or replace function fencepost.enqueue(
    task_queue text,
    task_type text,
    payload jsonb default 'null',
    namespace text default 'default',
    dispatch_key text default null,
    delay interval default null,
    run_at timestamptz default null,
    priority int default 1,
    node text default null,
    max_attempts int default null,
    run_timeout interval default null,
    heartbeat_timeout interval default null,
    schedule_to_start interval default null,
    settle text default 'completed',
    concurrency_key text default null,
    labels jsonb default '{}',
    options jsonb default '{}'
) returns table (task_id bigint, created boolean, answer text)
language plpgsql
as $$
#variable_conflict use_variable
begin
    if
        num_nonnulls(
            dispatch_key, delay, run_at, node, max_attempts, run_timeout, heartbeat_timeout, schedule_to_start,
            concurrency_key, nullif(settle, 'completed'), nullif(labels, '{}'), nullif(options, '{}')
        ) = 0
    then
        task_id := fencepost.put_plain_task(
            coalesce(namespace, 'default'), task_queue, task_type, convert_to(payload::text, 'UTF8'), 'application/json', coalesce(priority, 1)
        );
        if task_id is not null then
            created := true;
            answer := 'created';
            return next;
            return;
        end if;
    end if;
    return query
    select enqueued.task_id, enqueued.created, enqueued.answer
    from fencepost.enqueue_bytes(
        task_queue, task_type, convert_to(payload::text, 'UTF8'), 'application/json', namespace,
        dispatch_key, delay, run_at, priority, node, max_attempts, run_timeout, heartbeat_timeout,
        schedule_to_start, settle, concurrency_key, labels, options
    ) as enqueued;
end
$$;
