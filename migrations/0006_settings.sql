-- What operators set: namespaces and declared queues. Every door calls these functions.

set local lock_timeout = '5s';

-- A quota as it is given: a number of tasks, or -1, which lifts it.
create function fencepost.check_quota(max_in_flight int) returns void
language plpgsql
as $$
begin
    if max_in_flight < -1 then
        perform fencepost.refuse(
            'FP061', 'invalid_quota', 'max_in_flight', 'max_in_flight must be 0 or more, or -1 for no quota.'
        );
    end if;
end
$$;

-- Has the replicas read routes and namespaces again now, and not with their next beat. Advice, as all notifications.
create function fencepost.announce_settings() returns void
language plpgsql
as $$
begin
    if current_setting('fencepost.notify', true) is distinct from 'off' then
        perform pg_notify('fencepost', 'settings');
    end if;
end
$$;

-- {"mode": "anywhere"}, or prefer or require with 1 to 100 distinct names of nodes. What replicas can't read never
-- gets into the table.
create function fencepost.is_placement(placement jsonb) returns boolean
language plpgsql immutable parallel safe
as $$
begin
    return case
        when placement is null or jsonb_typeof(placement) <> 'object' then false
        when placement = '{"mode": "anywhere"}' then true
        when placement - array['mode', 'nodes'] <> '{}' then false
        when coalesce(placement ->> 'mode', '') not in ('prefer', 'require') then false
        when coalesce(jsonb_typeof(placement -> 'nodes'), '') <> 'array' then false
        when jsonb_array_length(placement -> 'nodes') not between 1 and 100 then false
        else (
            select
                bool_and(jsonb_typeof(node.value) = 'string' and fencepost.is_name(node.value #>> '{}'))
                and count(*) = count(distinct node.value)
            from jsonb_array_elements(placement -> 'nodes') as node
        )
    end;
end
$$;

alter table fencepost.namespace add constraint namespace_placement check (fencepost.is_placement(placement));

create index namespace_declares on fencepost.namespace (namespace_id)
where require_declared_queues;

-- Sets what is given of a namespace, which is made if it is new; null keeps what is there. `max_in_flight` bounds the
-- tasks that run at the same time over all replicas (-1 lifts it) and binds every claim that starts after the commit;
-- `weight` is its share of the slots beside other namespaces with due work. Waiting tasks are routed by what is set,
-- running ones run on.
create function fencepost.set_namespace(
    name text,
    placement jsonb default null,
    require_declared_queues boolean default null,
    weight int default null,
    max_in_flight int default null
) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    if not fencepost.is_name(name) then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'namespace', 'namespace must be 1 to 200 characters without control characters.'
        );
    end if;
    if placement is not null and not fencepost.is_placement(placement) then
        perform fencepost.refuse(
            'FP017', 'invalid_placement', 'placement',
            'placement must be {"mode": "anywhere"}, or have mode prefer or require and nodes, a list of 1 to 100'
            || ' different names.'
        );
    end if;
    if weight not between 1 and 1000 then
        perform fencepost.refuse('FP060', 'invalid_weight', 'weight', 'weight must be 1 to 1000.');
    end if;
    perform fencepost.check_quota(max_in_flight);
    insert into fencepost.namespace as known (name, placement, require_declared_queues, weight, max_in_flight)
    values (
        name, coalesce(placement, '{"mode": "anywhere"}'), coalesce(require_declared_queues, false),
        coalesce(weight, 1), nullif(max_in_flight, -1)
    )
    on conflict on constraint namespace_name_key do update
        set
            placement = coalesce(placement, known.placement),
            require_declared_queues = coalesce(require_declared_queues, known.require_declared_queues),
            weight = coalesce(weight, known.weight),
            max_in_flight = nullif(coalesce(max_in_flight, known.max_in_flight), -1),
            version = known.version + 1;
    perform fencepost.announce_settings();
end
$$;

-- Declares a route, which is made if it is new. `unserved` says what becomes of its due tasks while no live worker
-- serves it: they wait, or (strict) spend an attempt per backoff interval. `max_in_flight` bounds those of its tasks
-- that run at the same time over all replicas (-1 lifts it). null keeps what is there.
create function fencepost.declare_queue(
    task_queue text,
    task_type text,
    namespace text default 'default',
    node text default null,
    unserved text default null,
    max_in_flight int default null
) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    declared_id int;
begin
    if unserved is not null and unserved not in ('wait', 'strict') then
        perform fencepost.refuse('FP018', 'invalid_policy', 'unserved', 'unserved must be wait or strict.');
    end if;
    perform fencepost.check_quota(max_in_flight);
    if node = '' then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'node', 'node must be 1 to 200 characters without control characters.'
        );
    end if;
    perform fencepost.make_routes(array[namespace], array[task_queue], array[task_type], array[node]);
    declared_id := (fencepost.find_routes(array[namespace], array[task_queue], array[task_type], array[node]))[1];
    if declared_id is null then
        raise exception using
            errcode = 'serialization_failure', message = 'a concurrent transaction made this route first';
    end if;
    update fencepost.route
    set
        declared = true,
        unserved = coalesce(declare_queue.unserved, route.unserved),
        max_in_flight = nullif(coalesce(declare_queue.max_in_flight, route.max_in_flight), -1),
        version = route.version + 1
    where route.route_id = declared_id;
    perform fencepost.announce_settings();
    return declared_id;
end
$$;
