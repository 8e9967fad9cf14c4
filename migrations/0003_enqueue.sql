-- Enqueue: the producers' public functions, for their own transactions. Every other door calls them too, so
-- what is valid is written here and nowhere else. A refusal raises SQLSTATE FP0nn with the stable code in
-- DETAIL and the field at fault in COLUMN.

set local lock_timeout = '5s';

create function fencepost.refuse(sqlstate_code text, slug text, field text, sentence text) returns void
language plpgsql
as $$
begin
    raise exception using errcode = sqlstate_code, message = sentence, detail = slug, column = field;
end
$$;

create function fencepost.is_name(name text) returns boolean
language sql immutable parallel safe
as $$ select name is not null and char_length(name) between 1 and 200 and name !~ '[\x01-\x1f\x7f-\x9f]' $$;

-- One value stands for the whole batch; none stands for the default.
create function fencepost.spread(given anyarray, tasks int, field text) returns anyarray
language plpgsql immutable
as $$
begin
    if cardinality(given) = tasks then
        return given;
    elsif coalesce(cardinality(given), 0) = 0 then
        return null;
    elsif cardinality(given) = 1 then
        return array_fill(given[1], array[tasks]);
    end if;
    perform fencepost.refuse(
        'FP010', 'invalid_batch', field,
        format('%s has %s values for %s tasks: give none, one, or one a task.', field, cardinality(given), tasks)
    );
end
$$;

-- "task 3: " where a batch could leave one guessing.
create function fencepost.place(ordinal bigint, tasks int) returns text
language sql immutable parallel safe
as $$ select case when tasks > 1 then 'task ' || ordinal || ': ' else '' end $$;

-- Brings JSON payloads into PostgreSQL's normal form. The exception block holds no write, so it takes no
-- transaction id of its own.
create function fencepost.normal_json(given bytea) returns bytea
language plpgsql immutable strict parallel safe
as $$ begin return convert_to(convert_from(given, 'UTF8')::jsonb::text, 'UTF8'); end $$;

create function fencepost.normal_payloads(payload bytea[], content_type text[], field text) returns bytea[]
language plpgsql stable
as $$
declare
    item record;
begin
    return array(
        select case when given.content_type = 'application/json' then fencepost.normal_json(given.body) else given.body end
        from unnest(payload, content_type) with ordinality as given (body, content_type, ordinal)
        order by given.ordinal
    );
exception
    when data_exception or program_limit_exceeded then
        for item in
            select given.body, given.ordinal
            from unnest(payload, content_type) with ordinality as given (body, content_type, ordinal)
            where given.content_type = 'application/json'
            order by given.ordinal
        loop
            begin
                perform fencepost.normal_json(item.body);
            exception
                when data_exception or program_limit_exceeded then
                    perform fencepost.refuse(
                        'FP003', 'invalid_json', field,
                        fencepost.place(item.ordinal, cardinality(payload))
                        || field || ' is not JSON that PostgreSQL can store: ' || sqlerrm || '.'
                    );
            end;
        end loop;
        raise;
end
$$;

-- The route's number for each task, null where a route is not known yet. In plpgsql, which keeps the plan: a function
-- in SQL that can't be inlined is parsed and planned at every call.
create function fencepost.find_routes(namespace text[], task_queue text[], task_type text[], node text[]) returns int[]
language plpgsql stable
as $$
begin
    return (
        select array_agg(route.route_id order by wanted.ordinal)
        from unnest(namespace, task_queue, task_type, node)
            with ordinality as wanted (namespace, task_queue, task_type, node, ordinal)
        left join fencepost.namespace on namespace.name = coalesce(wanted.namespace, 'default')
        left join fencepost.route
            on
                route.namespace_id = namespace.namespace_id
                and route.task_queue = wanted.task_queue
                and route.task_type = wanted.task_type
                and route.node = coalesce(wanted.node, '')
    );
end
$$;

-- Interns routes that nobody has used yet. A concurrent first use of the same route is waited for.
create function fencepost.make_routes(namespace text[], task_queue text[], task_type text[], node text[]) returns void
language plpgsql
as $$
declare
    fault record;
begin
    select
        fencepost.place(wanted.ordinal, cardinality(make_routes.task_type)) as place,
        checked.field
    into fault
    from unnest(namespace, task_queue, task_type, node)
        with ordinality as wanted (namespace, task_queue, task_type, node, ordinal)
    cross join lateral (
        values
        (1, 'namespace', coalesce(wanted.namespace, 'default')),
        (2, 'task_queue', wanted.task_queue),
        (3, 'task_type', wanted.task_type),
        (4, 'node', coalesce(wanted.node, '-'))
    ) as checked (rank, field, name)
    where not fencepost.is_name(checked.name)
    order by wanted.ordinal, checked.rank
    limit 1;
    if found then
        perform fencepost.refuse(
            'FP001', 'invalid_name', fault.field,
            fault.place || fault.field || ' must be 1 to 200 characters without control characters.'
        );
    end if;

    insert into fencepost.namespace (name)
    select distinct coalesce(wanted.namespace, 'default') as name
    from unnest(namespace, task_queue) as wanted (namespace, task_queue)
    where not exists (select from fencepost.namespace as known where known.name = coalesce(wanted.namespace, 'default'))
    order by name
    on conflict do nothing;

    insert into fencepost.route (namespace_id, task_queue, task_type, node)
    select distinct known.namespace_id, wanted.task_queue, wanted.task_type, coalesce(wanted.node, '') as node
    from unnest(namespace, task_queue, task_type, node) as wanted (namespace, task_queue, task_type, node)
    inner join fencepost.namespace as known on known.name = coalesce(wanted.namespace, 'default')
    where
        not exists (
            select from fencepost.route as other
            where
                other.namespace_id = known.namespace_id
                and other.task_queue = wanted.task_queue
                and other.task_type = wanted.task_type
                and other.node = coalesce(wanted.node, '')
        )
    order by known.namespace_id, wanted.task_queue, wanted.task_type, node
    on conflict do nothing;
end
$$;

-- Raises for the first task of the batch whose namespace asks for declared queues and whose route is none. Most
-- databases have no such namespace, which the first look settles.
create function fencepost.check_declared(routes int[], task_queue text[]) returns void
language plpgsql stable
as $$
declare
    fault record;
begin
    if not exists (select from fencepost.namespace where namespace.require_declared_queues) then
        return;
    end if;
    select given.ordinal, given.task_queue, namespace.name as namespace
    into fault
    from unnest(routes, task_queue) with ordinality as given (route_id, task_queue, ordinal)
    inner join fencepost.route on route.route_id = given.route_id
    inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
    where namespace.require_declared_queues and not route.declared
    order by given.ordinal
    limit 1;
    if found then
        perform fencepost.refuse(
            'FP015', 'queue_not_declared', 'task_queue',
            format(
                '%snamespace %s takes tasks for declared queues only, and %s is not declared for this type and node.',
                fencepost.place(fault.ordinal, cardinality(routes)), fault.namespace, fault.task_queue
            )
        );
    end if;
end
$$;

-- Raises for the first task of the batch that asks for something out of bounds.
create function fencepost.check_tasks(
    payload bytea[], content_type text[], dispatch_key text[], delay interval[], run_at timestamptz[],
    priority int[], node text[], max_attempts int[], run_timeout interval[], heartbeat_timeout interval[],
    schedule_to_start interval[], settle text[], concurrency_key text[], labels jsonb[], options jsonb[]
) returns void
language plpgsql stable
as $$
declare
    payload_limit int := (select limits.payload_bytes from fencepost.limits);
    -- what an int of milliseconds holds
    longest_timeout interval := interval '24 days';
    longest_delay interval := interval '10 years';
    media_type text := '^[a-z0-9!#$&^_.+-]{1,80}/[a-z0-9!#$&^_.+-]{1,80}(; ?[a-zA-Z0-9_-]+=[a-zA-Z0-9_.-]+)*$';
    fault record;
    rule record;
begin
    select given.ordinal, octet_length(given.payload) as stored_bytes, checked.rule
    into fault
    from unnest(
        payload, content_type, dispatch_key, delay, run_at, priority, node, max_attempts, run_timeout,
        heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options
    ) with ordinality as given (
        payload, content_type, dispatch_key, delay, run_at, priority, node, max_attempts, run_timeout,
        heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options, ordinal
    )
    cross join lateral (
        select
            case
                when given.payload is null then 1
                when octet_length(given.payload) > payload_limit then 2
                when given.content_type <> 'application/json' and given.content_type !~ media_type then 3
                when given.dispatch_key is not null and not fencepost.is_name(given.dispatch_key) then 4
                when given.delay is not null and given.run_at is not null then 5
                when given.delay not between interval '0' and longest_delay then 6
                when
                    given.run_at < timestamptz '2000-01-01 00:00:00+00'
                    or given.run_at > statement_timestamp() + longest_delay
                    then 7
                when given.priority not between 0 and 3 then 8
                when given.max_attempts not between 1 and 1000 then 9
                when given.run_timeout not between interval '0' and longest_timeout then 10
                when given.heartbeat_timeout not between interval '0' and longest_timeout then 11
                when
                    given.schedule_to_start <= interval '0' or given.schedule_to_start > longest_delay
                    then 12
                when given.settle not in ('completed', 'accepted') then 13
                when given.concurrency_key is not null and not fencepost.is_name(given.concurrency_key) then 14
                -- With a null in front, AND would go on and call the function for every task.
                when given.labels is not null and given.labels <> '{}' and not fencepost.are_labels(given.labels) then 15
                when given.options is not null and given.options <> '{}' and not fencepost.are_options(given.options) then 16
                -- no node is null: the empty one would be a second name for it
                when given.node = '' then 17
            end as rule
    ) as checked
    where checked.rule is not null
    order by given.ordinal
    limit 1;
    if not found then
        return;
    end if;
    select rules.* into rule
    from (
        values
        (1, 'FP002', 'payload_missing', 'payload', 'payload must not be null.'),
        (
            2, 'FP002', 'payload_too_large', 'payload',
            format('payload has %s bytes as stored; the limit is %s.', fault.stored_bytes, payload_limit)
        ),
        (
            3, 'FP004', 'invalid_content_type', 'content_type',
            'content_type must be a media type in lower case, such as application/json.'
        ),
        (
            4, 'FP001', 'invalid_name', 'dispatch_key',
            'dispatch_key must be 1 to 200 characters without control characters.'
        ),
        (5, 'FP005', 'invalid_delay', 'delay', 'delay and run_at exclude each other.'),
        (6, 'FP005', 'invalid_delay', 'delay', 'delay must be between 0 and 10 years.'),
        (
            7, 'FP005', 'invalid_delay', 'run_at',
            'run_at must be a time between the year 2000 and ten years from now.'
        ),
        (8, 'FP006', 'invalid_priority', 'priority', 'priority must be 0 (first), 1, 2 or 3.'),
        (9, 'FP007', 'invalid_limit', 'max_attempts', 'max_attempts must be between 1 and 1000.'),
        (10, 'FP007', 'invalid_limit', 'run_timeout', 'run_timeout must be between 0 (none) and 24 days.'),
        (
            11, 'FP007', 'invalid_limit', 'heartbeat_timeout',
            'heartbeat_timeout must be between 0 (none) and 24 days.'
        ),
        (
            12, 'FP007', 'invalid_limit', 'schedule_to_start',
            'schedule_to_start must be more than 0 and at most 10 years.'
        ),
        (13, 'FP011', 'invalid_settle', 'settle', 'settle must be completed or accepted.'),
        (
            14, 'FP001', 'invalid_name', 'concurrency_key',
            'concurrency_key must be 1 to 200 characters without control characters.'
        ),
        (
            15, 'FP008', 'invalid_labels', 'labels',
            'labels must be a JSON object of at most 32 strings of up to 1000 characters.'
        ),
        (
            16, 'FP009', 'unknown_option', 'options',
            'options must be a JSON object with known keys only: backoff_base_ms, backoff_max_ms (integers, 0 to'
            || ' 2147483647), backoff_multiplier (a number, 1 to 100), trace_context (a string).'
        ),
        (
            17, 'FP001', 'invalid_name', 'node',
            'node must be 1 to 200 characters without control characters.'
        )
    ) as rules (number, code, slug, field, sentence)
    where rules.number = fault.rule;
    perform fencepost.refuse(
        rule.code, rule.slug, rule.field, fencepost.place(fault.ordinal, cardinality(payload)) || rule.sentence
    );
end
$$;

create function fencepost.are_labels(labels jsonb) returns boolean
language plpgsql immutable parallel safe
as $$
begin
    return case
        when labels is null then true
        when jsonb_typeof(labels) <> 'object' then false
        else (
            select
                count(*) <= 32
                and coalesce(
                    bool_and(
                        fencepost.is_name(label.key) and jsonb_typeof(label.value) = 'string'
                        and char_length(label.value #>> '{}') <= 1000
                    ),
                    true
                )
            from jsonb_each(labels) as label
        )
    end;
end
$$;

create function fencepost.are_options(options jsonb) returns boolean
language plpgsql immutable parallel safe
as $$
begin
    return case
        when options is null then true
        when jsonb_typeof(options) <> 'object' then false
        else (
            select
                coalesce(
                    bool_and(
                        case
                            when entry.key in ('backoff_base_ms', 'backoff_max_ms') and jsonb_typeof(entry.value) = 'number'
                                then
                                    (entry.value #>> '{}')::numeric between 0 and 2147483647
                                    and (entry.value #>> '{}')::numeric = trunc((entry.value #>> '{}')::numeric)
                            when entry.key = 'backoff_multiplier' and jsonb_typeof(entry.value) = 'number'
                                then (entry.value #>> '{}')::numeric between 1 and 100
                            when entry.key = 'trace_context' and jsonb_typeof(entry.value) = 'string'
                                then char_length(entry.value #>> '{}') <= 1000
                            else false
                        end
                    ),
                    true
                )
            from jsonb_each(options) as entry
        )
    end;
end
$$;

-- True when the task that holds a dispatch key ended longer ago than the key is remembered, or has left history.
create function fencepost.key_expired(task_id bigint, remember interval) returns boolean
language sql stable
as $$
select
    not exists (select from fencepost.live where live.id = task_id)
    and not exists (
        select from fencepost.outcome
        where outcome.id = task_id and outcome.ended_at + remember > statement_timestamp()
    )
$$;

-- The task that owns the key from now on: `candidate` where the key is free or expired. A concurrent taker of
-- the same key is waited for. Above READ COMMITTED the wait can end in a serialisation failure, for the caller.
create function fencepost.take_key(namespace int, wanted text, candidate bigint, remembered interval) returns bigint
language plpgsql
as $$
declare
    holder fencepost.dispatch_key;
begin
    loop
        insert into fencepost.dispatch_key (namespace_id, key, task_id, remember)
        values (namespace, wanted, candidate, remembered)
        on conflict do nothing;
        if found then
            return candidate;
        end if;
        select * into holder from fencepost.dispatch_key as held
        where held.namespace_id = namespace and held.key = wanted;
        if found then
            if not fencepost.key_expired(holder.task_id, holder.remember) then
                return holder.task_id;
            end if;
            update fencepost.dispatch_key as held
            set task_id = candidate, remember = remembered
            where held.namespace_id = namespace and held.key = wanted and held.task_id = holder.task_id;
            if found then
                return candidate;
            end if;
        end if;
    end loop;
end
$$;

-- New ids, in order. Past the horizon the milliseconds come from the sequence instead of the clock, and an
-- id that is taken is passed over.
create function fencepost.new_ids(tasks int) returns bigint[]
language plpgsql
as $$
declare
    span fencepost.horizon := (select horizon from fencepost.horizon);
    ms bigint := greatest(fencepost.id_ms(clock_timestamp()), span.floor_ms);
    ids bigint[];
begin
    if ms < span.end_ms then
        return array(
            select (ms << 22) | (nextval('fencepost.task_sequence') & 4194303) from generate_series(1, tasks)
        );
    end if;
    loop
        ids := array(
            select ((span.end_ms - 1 - ((drawn.value >> 22) & 65535)) << 22) | (drawn.value & 4194303)
            from (select nextval('fencepost.task_sequence') as value from generate_series(1, tasks)) as drawn
        );
        exit when not exists (select from fencepost.task where task.id = any(ids));
    end loop;
    return ids;
end
$$;

-- Whether a notification is of use: advice for replicas that sleep; the lock that a notifying commit takes is not
-- worth it for the others. A producer with two-phase commit sets fencepost.notify to off: PREPARE TRANSACTION
-- refuses a NOTIFY.
create function fencepost.somebody_sleeps() returns boolean
language plpgsql stable
as $$
begin
    return exists (select from fencepost.dispatcher where dispatcher.sleeping and dispatcher.dead_at is null)
        and current_setting('fencepost.notify', true) is distinct from 'off';
end
$$;

-- Writes a batch of tasks, as enqueue_many takes it; as members of a workflow's run where one is given, with ordinals
-- from `first_ordinal` on and with these hold bits. Whoever gives a run has its row locked.
create function fencepost.put_tasks(
    task_queue text[],
    task_type text[],
    payload bytea[],
    content_type text[],
    namespace text[],
    dispatch_key text[],
    delay interval[],
    run_at timestamptz[],
    priority int[],
    node text[],
    max_attempts int[],
    run_timeout interval[],
    heartbeat_timeout interval[],
    schedule_to_start interval[],
    settle text[],
    concurrency_key text[],
    labels jsonb[],
    options jsonb[],
    workflow bigint,
    run bigint,
    first_ordinal int,
    held smallint
) returns table (ordinal bigint, task_id bigint, created boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
    tasks int := cardinality(payload);
    ids bigint[];
    owners bigint[];
    routes int[];
    enqueued timestamptz;
begin
    if coalesce(tasks, 0) = 0 then
        return;
    elsif tasks > 100000 then
        perform fencepost.refuse(
            'FP010', 'invalid_batch', 'payload', format('a batch holds at most 100000 tasks, this one has %s.', tasks)
        );
    end if;
    task_queue := coalesce(fencepost.spread(task_queue, tasks, 'task_queue'), array_fill(null::text, array[tasks]));
    task_type := coalesce(fencepost.spread(task_type, tasks, 'task_type'), array_fill(null::text, array[tasks]));
    content_type := fencepost.spread(coalesce(content_type, array['application/json']), tasks, 'content_type');
    namespace := fencepost.spread(namespace, tasks, 'namespace');
    dispatch_key := fencepost.spread(dispatch_key, tasks, 'dispatch_key');
    delay := fencepost.spread(delay, tasks, 'delay');
    run_at := fencepost.spread(run_at, tasks, 'run_at');
    priority := fencepost.spread(priority, tasks, 'priority');
    node := fencepost.spread(node, tasks, 'node');
    max_attempts := fencepost.spread(max_attempts, tasks, 'max_attempts');
    run_timeout := fencepost.spread(run_timeout, tasks, 'run_timeout');
    heartbeat_timeout := fencepost.spread(heartbeat_timeout, tasks, 'heartbeat_timeout');
    schedule_to_start := fencepost.spread(schedule_to_start, tasks, 'schedule_to_start');
    settle := fencepost.spread(settle, tasks, 'settle');
    concurrency_key := fencepost.spread(concurrency_key, tasks, 'concurrency_key');
    labels := fencepost.spread(labels, tasks, 'labels');
    options := fencepost.spread(options, tasks, 'options');

    if array_position(content_type, null) is not null then
        content_type := array(
            select coalesce(given.content_type, 'application/json')
            from unnest(content_type) with ordinality as given (content_type, ordinal)
            order by given.ordinal
        );
    end if;
    payload := fencepost.normal_payloads(payload, content_type, 'payload');
    perform fencepost.check_tasks(
        payload, content_type, dispatch_key, delay, run_at, priority, node, max_attempts, run_timeout,
        heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options
    );
    routes := fencepost.find_routes(namespace, task_queue, task_type, node);
    if array_position(routes, null) is not null then
        perform fencepost.make_routes(namespace, task_queue, task_type, node);
        routes := fencepost.find_routes(namespace, task_queue, task_type, node);
        if array_position(routes, null) is not null then
            -- Above READ COMMITTED a route that a concurrent transaction made stays out of sight.
            raise exception using
                errcode = 'serialization_failure', message = 'a concurrent transaction made this route first';
        end if;
    end if;
    perform fencepost.check_declared(routes, task_queue);
    ids := fencepost.new_ids(tasks);
    owners := ids;
    if cardinality(array_remove(dispatch_key, null)) > 0 then
        owners := fencepost.take_keys(ids, routes, dispatch_key);
    end if;
    enqueued := clock_timestamp();

    with given as materialized (
        select input.*
        from unnest(
            ids, owners, routes, payload, content_type, dispatch_key, delay, run_at, priority, max_attempts,
            run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options
        ) with ordinality as input (
            id, owner, route_id, payload, content_type, dispatch_key, delay, run_at, priority, max_attempts,
            run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options, place
        )
        where input.id = input.owner
    ), body as (
        insert into fencepost.task (
            id, origin, enqueued_at, route_id, max_attempts, run_timeout_ms, heartbeat_timeout_ms,
            schedule_to_start_ms, settle_accepted, workflow_id, run_id, ordinal, content_type, dispatch_key,
            concurrency_key, labels, options, payload
        )
        select
            given.id, given.id, enqueued, given.route_id, given.max_attempts,
            extract(epoch from given.run_timeout) * 1000, extract(epoch from given.heartbeat_timeout) * 1000,
            extract(epoch from given.schedule_to_start) * 1000, coalesce(given.settle = 'accepted', false),
            workflow, run, first_ordinal + given.place - 1, given.content_type, given.dispatch_key,
            given.concurrency_key,
            nullif(given.labels, '{}'), nullif(given.options, '{}'), given.payload
        from given
    )
    insert into fencepost.live (id, route_id, priority, visible_after, start_by, run_timeout_ms, run_id, hold)
    select
        given.id, given.route_id, coalesce(given.priority, 1), due.at, due.at + given.schedule_to_start,
        extract(epoch from given.run_timeout) * 1000, run, held
    from given
    cross join lateral (
        -- Never in the past: such a row would lie below the low-water marks.
        select greatest(given.run_at, enqueued + coalesce(given.delay, interval '0')) as at
    ) as due;

    if held = 0 and fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', due.route_id::text)
        from (
            select distinct given.route_id
            from unnest(routes, ids, owners, delay, run_at) as given (route_id, id, owner, delay, run_at)
            where
                given.id = given.owner
                and coalesce(given.run_at, enqueued + coalesce(given.delay, interval '0')) < enqueued + interval '1 second'
        ) as due;
    end if;

    return query
    select input.ordinal, input.owner, input.id = input.owner
    from unnest(ids, owners) with ordinality as input (id, owner, ordinal)
    order by input.ordinal;
end
$$;

-- Enqueues a batch in the caller's transaction and answers (ordinal from 1, id, created) in order. Each array
-- holds one value a task, one for all, or is null for the default.
create function fencepost.enqueue_many(
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
) returns table (ordinal bigint, task_id bigint, created boolean)
language plpgsql
as $$
#variable_conflict use_variable
begin
    return query
    select put.ordinal, put.task_id, put.created
    from fencepost.put_tasks(
        task_queue, task_type, payload, content_type, namespace, dispatch_key, delay, run_at, priority, node,
        max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options,
        null, null, null, 0::smallint
    ) as put;
end
$$;

-- The owner of each task's key, in order: its own id where it has no key. Keys are taken in sorted order, so
-- that two batches never wait for each other both ways.
create function fencepost.take_keys(ids bigint[], routes int[], dispatch_key text[]) returns bigint[]
language plpgsql
as $$
declare
    owners bigint[] := ids;
    remembered interval := (select limits.remember from fencepost.limits);
    item record;
    last_namespace int;
    last_key text;
    last_owner bigint;
begin
    for item in
        select given.ordinal, given.id, route.namespace_id, given.key
        from unnest(ids, routes, dispatch_key) with ordinality as given (id, route_id, key, ordinal)
        inner join fencepost.route on route.route_id = given.route_id
        where given.key is not null
        order by route.namespace_id, given.key, given.ordinal
    loop
        if (last_namespace, last_key) is distinct from (item.namespace_id, item.key) then
            last_owner := fencepost.take_key(item.namespace_id, item.key, item.id, remembered);
            last_namespace := item.namespace_id;
            last_key := item.key;
        end if;
        owners[item.ordinal] := last_owner;
    end loop;
    return owners;
end
$$;

-- Enqueues one task of opaque bytes. With content type application/json the bytes are checked as JSON.
create function fencepost.enqueue_bytes(
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
) returns table (task_id bigint, created boolean)
language plpgsql
as $$
#variable_conflict use_variable
begin
    return query
    select enqueued.task_id, enqueued.created
    from fencepost.enqueue_many(
        array[task_queue], array[task_type], array[payload], array[content_type], array[namespace],
        array[dispatch_key], array[delay], array[run_at], array[priority], array[node], array[max_attempts],
        array[run_timeout], array[heartbeat_timeout], array[schedule_to_start], array[settle],
        array[concurrency_key], array[labels], array[options]
    ) as enqueued;
end
$$;

-- Enqueues one task with a JSON payload: the call for applications, in the transaction of their own data.
create function fencepost.enqueue(
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
) returns table (task_id bigint, created boolean)
language plpgsql
as $$
#variable_conflict use_variable
begin
    return query
    select enqueued.task_id, enqueued.created
    from fencepost.enqueue_bytes(
        task_queue, task_type, convert_to(payload::text, 'UTF8'), 'application/json', namespace,
        dispatch_key, delay, run_at, priority, node, max_attempts, run_timeout, heartbeat_timeout,
        schedule_to_start, settle, concurrency_key, labels, options
    ) as enqueued;
end
$$;
