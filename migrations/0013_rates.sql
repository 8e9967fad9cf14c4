-- Rates: how many tasks of a namespace or route may start in a time, over all replicas. Every door calls these
-- functions.

set local lock_timeout = '5s';

-- So many tasks in a period, and so many at once; a burst of null is what comes in a second.
alter table fencepost.namespace
add column rate_tasks int,
add column rate_period_ms int,
add column rate_burst int,
add constraint namespace_rate check (
    num_nulls(rate_tasks, rate_period_ms) in (0, 2)
    and (rate_burst is null or rate_tasks is not null)
    and rate_tasks between 1 and 1000000
    and rate_period_ms > 0
    and rate_burst between 1 and 1000000
);

alter table fencepost.route
add column rate_tasks int,
add column rate_period_ms int,
add column rate_burst int,
add constraint route_rate check (
    num_nulls(rate_tasks, rate_period_ms) in (0, 2)
    and (rate_burst is null or rate_tasks is not null)
    and rate_tasks between 1 and 1000000
    and rate_period_ms > 0
    and rate_burst between 1 and 1000000
);

-- The tokens of a rate: one timestamp, the time at which the bucket will be full again, and the rate that it holds for.
-- Under another one it counts as full: whoever sets a rate changes no row that claims write, so that nobody waits for a
-- transaction that is left open. Whoever holds the advisory lock of lock_quotas reads and writes the row. Each is
-- written some ten times a second at most by each replica, so they keep to their pages.
create table fencepost.bucket (
    -- 1 of a namespace, 2 of a route
    kind int not null,
    number int not null,
    tasks int not null,
    period_ms int not null,
    burst int not null,
    full_at timestamptz not null,
    primary key (kind, number)
)
with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

create type fencepost.rate as (
    tasks int,
    period_ms int,
    burst int
);

-- What a rate becomes: `rate` is N/s, N/min or N/h, or none, which lifts it; null keeps what is there.
create function fencepost.change_rate(kept fencepost.rate, rate text, burst int) returns fencepost.rate
language plpgsql immutable
as $$
#variable_conflict use_variable
declare
    tasks text := substring(rate from '^([0-9]{1,7})/(?:s|min|h)$');
begin
    if rate <> 'none' and (tasks is null or tasks::int not between 1 and 1000000) then
        perform fencepost.refuse(
            'FP062', 'invalid_rate', 'rate',
            'rate must be a number of tasks from 1 to 1000000 in a second, minute or hour, such as 5/s, 90/min or'
            || ' 1000/h, or none.'
        );
    end if;
    if burst not between 1 and 1000000 then
        perform fencepost.refuse('FP063', 'invalid_burst', 'burst', 'burst must be 1 to 1000000 tasks.');
    end if;
    if burst is not null and (rate = 'none' or coalesce(rate, kept.tasks::text) is null) then
        perform fencepost.refuse('FP063', 'invalid_burst', 'burst', 'burst goes with a rate, and there is none.');
    end if;
    if rate = 'none' then
        return row(null, null, null)::fencepost.rate;
    end if;
    if rate is not null then
        kept.tasks := tasks::int;
        kept.period_ms := case split_part(rate, '/', 2) when 's' then 1000 when 'min' then 60000 else 3600000 end;
    end if;
    kept.burst := coalesce(burst, kept.burst);
    return kept;
end
$$;

-- Sets how many tasks of a namespace, which is made if it is new, may start in a time, over all replicas. It binds
-- every claim that starts after the commit, and ends at once what an earlier rate has put off.
create function fencepost.set_namespace_rate(name text, rate text default null, burst int default null) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    changed fencepost.rate;
begin
    if not fencepost.is_name(name) then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'namespace', 'namespace must be 1 to 200 characters without control characters.'
        );
    end if;
    insert into fencepost.namespace (name) values (name)
    on conflict on constraint namespace_name_key do nothing;
    select known.rate_tasks, known.rate_period_ms, known.rate_burst into changed
    from fencepost.namespace as known
    where known.name = set_namespace_rate.name
    for update;
    changed := fencepost.change_rate(changed, rate, burst);
    update fencepost.namespace as known
    set
        rate_tasks = changed.tasks,
        rate_period_ms = changed.period_ms,
        rate_burst = changed.burst,
        version = known.version + 1
    where known.name = set_namespace_rate.name;
    perform fencepost.announce_settings();
end
$$;

-- The same of a route, which is declared with that.
create function fencepost.set_queue_rate(
    task_queue text,
    task_type text,
    namespace text default 'default',
    node text default null,
    rate text default null,
    burst int default null
) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    declared_id int := fencepost.declare_queue(
        task_queue => task_queue, task_type => task_type, namespace => namespace, node => node
    );
    changed fencepost.rate;
begin
    select known.rate_tasks, known.rate_period_ms, known.rate_burst into changed
    from fencepost.route as known
    where known.route_id = declared_id
    for update;
    changed := fencepost.change_rate(changed, rate, burst);
    update fencepost.route as known
    set
        rate_tasks = changed.tasks,
        rate_period_ms = changed.period_ms,
        rate_burst = changed.burst,
        version = known.version + 1
    where known.route_id = declared_id;
    return declared_id;
end
$$;
