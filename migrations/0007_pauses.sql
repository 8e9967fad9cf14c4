-- Pauses: what operators keep from starting, until they resume it. Every door calls these functions.

set local lock_timeout = '5s';

-- One row a pause. What it leaves open is empty (no name is), so that it binds what comes later too; it goes by names,
-- since it may come before its namespace. All four empty: everything.
create table fencepost.pause (
    namespace text not null default '',
    task_queue text not null default '',
    task_type text not null default '',
    node text not null default '',
    reason text not null default '',
    paused_by text not null default '',
    paused_at timestamptz not null default clock_timestamp(),
    -- what runs there is asked to stop, also what somebody claimed while the pause was on its way
    cancel_running boolean not null default false,
    constraint pause_address primary key (namespace, task_queue, task_type, node)
);

-- The routes that pauses bind; one that several of them bind has a row for each. The one place in SQL that says so.
create view fencepost.paused_route as
select
    route.route_id,
    pause.cancel_running
from fencepost.route
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
inner join fencepost.pause
    on
        pause.namespace in ('', namespace.name)
        and pause.task_queue in ('', route.task_queue)
        and pause.task_type in ('', route.task_type)
        and pause.node in ('', route.node);

-- Raises unless this is the address of a pause: at least one name, or everything.
create function fencepost.check_address(
    namespace text, task_queue text, task_type text, node text, everything boolean
) returns void
language plpgsql immutable
as $$
#variable_conflict use_variable
declare
    fault text;
    named int := num_nonnulls(namespace, task_queue, task_type, node);
begin
    select checked.field
    into fault
    from (
        values
        (1, 'namespace', namespace),
        (2, 'task_queue', task_queue),
        (3, 'task_type', task_type),
        (4, 'node', node)
    ) as checked (rank, field, name)
    where checked.name is not null and not fencepost.is_name(checked.name)
    order by checked.rank
    limit 1;
    if found then
        perform fencepost.refuse(
            'FP001', 'invalid_name', fault,
            fault || ' must be 1 to 200 characters without control characters.'
        );
    end if;
    if named = 0 and everything is not true then
        perform fencepost.refuse(
            'FP019', 'invalid_address', 'everything',
            'name a namespace, a task queue, a task type or a node, or say that everything is meant.'
        );
    elsif named > 0 and everything then
        perform fencepost.refuse(
            'FP019', 'invalid_address', 'everything',
            'everything and a namespace, a task queue, a task type or a node exclude each other.'
        );
    end if;
end
$$;

-- An address for people.
create function fencepost.address_text(namespace text, task_queue text, task_type text, node text) returns text
language sql immutable parallel safe
as $$
select coalesce(
    nullif(
        concat_ws(
            ', ',
            'namespace ' || nullif(namespace, ''),
            'queue ' || nullif(task_queue, ''),
            'type ' || nullif(task_type, ''),
            'node ' || nullif(node, '')
        ),
        ''
    ),
    'everything'
)
$$;

-- Tells the replicas that operators ordered something: it stands in rows, which they also read with each beat.
-- A session with two-phase commit sets fencepost.notify to off.
create function fencepost.notify_orders() returns void
language plpgsql
as $$
begin
    if current_setting('fencepost.notify', true) is distinct from 'off' then
        perform pg_notify('fencepost', 'orders');
    end if;
end
$$;

-- Keeps tasks of this address from starting; what is not named is any. It binds every claim whose statement starts
-- after its commit; what runs runs on, or is asked to stop too. Answers false where this very address was paused
-- already: then who and why are replaced, since when stays, and a request to stop what runs is never taken back.
create function fencepost.pause(
    namespace text default null,
    task_queue text default null,
    task_type text default null,
    node text default null,
    reason text default '',
    paused_by text default '',
    everything boolean default false,
    cancel_running boolean default false
) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    is_new boolean;
begin
    perform fencepost.check_address(namespace, task_queue, task_type, node, everything);
    insert into fencepost.pause as known (
        namespace, task_queue, task_type, node, reason, paused_by, cancel_running
    )
    values (
        coalesce(namespace, ''), coalesce(task_queue, ''), coalesce(task_type, ''), coalesce(node, ''),
        left(coalesce(reason, ''), 1000), left(coalesce(paused_by, ''), 200), coalesce(cancel_running, false)
    )
    on conflict on constraint pause_address do update
        set
            reason = excluded.reason,
            paused_by = excluded.paused_by,
            cancel_running = known.cancel_running or excluded.cancel_running
    -- a row that was inserted has been locked or changed by nobody
    returning known.xmax = 0 into is_new;
    perform fencepost.notify_orders();
    return is_new;
end
$$;

-- Ends the pause of exactly this address, and answers since when it was there. Other pauses that bind the same
-- tasks stay.
create function fencepost.resume(
    namespace text default null,
    task_queue text default null,
    task_type text default null,
    node text default null,
    everything boolean default false
) returns timestamptz
language plpgsql
as $$
#variable_conflict use_variable
declare
    since timestamptz;
    others text;
begin
    perform fencepost.check_address(namespace, task_queue, task_type, node, everything);
    delete from fencepost.pause
    where
        pause.namespace = coalesce(namespace, '')
        and pause.task_queue = coalesce(task_queue, '')
        and pause.task_type = coalesce(task_type, '')
        and pause.node = coalesce(node, '')
    returning pause.paused_at into since;
    if since is null then
        select string_agg(known.address, '; ' order by known.address)
        into others
        from (
            select fencepost.address_text(pause.namespace, pause.task_queue, pause.task_type, pause.node) as address
            from fencepost.pause
            order by address
            limit 20
        ) as known;
        -- no single field is at fault
        raise exception using
            errcode = 'FP020',
            detail = 'not_paused',
            message = format(
                'there is no pause of %s; %s.',
                fencepost.address_text(namespace, task_queue, task_type, node),
                coalesce('paused are: ' || others, 'nothing is paused')
            );
    end if;
    perform fencepost.notify_orders();
    return since;
end
$$;
