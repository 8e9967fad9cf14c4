-- Task ids, and the day partitions that they fall into.
--
-- id = (milliseconds since 2025-01-01 UTC << 22) | (sequence & 4194303), by the database's clock, so the
-- id alone finds the partition. Ids are clamped into [floor, horizon): an insert never lacks a partition.

set local lock_timeout = '5s';

create sequence fencepost.task_sequence cycle;

create table fencepost.horizon (
    only_row boolean primary key default true check (only_row),
    -- milliseconds since 2025-01-01 UTC: start of the first partition, end of the last one in use
    floor_ms bigint not null,
    end_ms bigint not null,
    -- end of the last one attached, and the transactions that may not know of it yet
    attached_ms bigint not null,
    awaited text[]
);

create function fencepost.id_ms(at timestamptz) returns bigint
language sql immutable strict parallel safe
as $$ select floor(extract(epoch from at) * 1000)::bigint - 1735689600000 $$;

create function fencepost.enqueued_ms(id bigint) returns bigint
language sql immutable strict parallel safe
as $$ select (id >> 22) + 1735689600000 $$;

-- Makes the partition of one day apart and attaches it, so that only the attach takes a lock on the parent,
-- and one that writers do not wait for.
create function fencepost.make_partition(parent text, day date) returns void
language plpgsql
as $$
declare
    child text := parent || '_' || to_char(day, 'YYYYMMDD');
    low bigint := fencepost.id_ms(day::timestamp at time zone 'UTC') << 22;
    high bigint := fencepost.id_ms((day + 1)::timestamp at time zone 'UTC') << 22;
begin
    if to_regclass('fencepost.' || child) is null then
        execute format(
            'create table fencepost.%I (like fencepost.%I including defaults including constraints)',
            child, parent
        );
    end if;
    if not exists (
        select from pg_inherits where inhrelid = to_regclass('fencepost.' || child)
    ) then
        execute format(
            'alter table fencepost.%I attach partition fencepost.%I for values from (%s) to (%s)',
            parent, child, low, high
        );
    end if;
end
$$;

-- Sees to partitions up to `days` ahead and returns the end of the last one, in id milliseconds. After a long
-- pause the days in between are left out, but for yesterday, which takes the ids of a clock that steps back.
-- Two that meet wait for each other.
create function fencepost.make_partitions(days int) returns bigint
language plpgsql
as $$
declare
    first_day date := (clock_timestamp() at time zone 'UTC')::date - 1;
    reached bigint;
begin
    select greatest(first_day, (timestamp '2025-01-01' + horizon.attached_ms * interval '1 millisecond')::date)
    into first_day
    from fencepost.horizon
    for update;
    perform fencepost.make_partition(parents.parent, planned.at::date)
    from
        generate_series(
            first_day::timestamp,
            (clock_timestamp() at time zone 'UTC')::date + days,
            interval '1 day'
        ) as planned (at)
    cross join (values ('task'), ('outcome'), ('failure')) as parents (parent);
    reached := fencepost.id_ms(
        ((clock_timestamp() at time zone 'UTC')::date + days + 1)::timestamp at time zone 'UTC'
    );
    update fencepost.horizon
    set attached_ms = reached, awaited = null
    where attached_ms < reached;
    return reached;
end
$$;

-- Raises the horizon to the last attached partition once no transaction is left that held a lock on `task`
-- when the partition was already attached: such a producer keeps the list of partitions it has cached.
-- Called again and again, each time in a transaction of its own; true when there is nothing left to raise.
create function fencepost.raise_horizon() returns boolean
language plpgsql
as $$
declare
    current fencepost.horizon;
    this_database oid := (select pg_database.oid from pg_database where pg_database.datname = current_database());
begin
    select * into strict current from fencepost.horizon for update;
    if current.end_ms = current.attached_ms then
        return true;
    end if;
    if current.awaited is null then
        update fencepost.horizon
        set
            awaited = array(
                select locks.virtualtransaction
                from pg_catalog.pg_locks as locks
                where
                    locks.relation = 'fencepost.task'::regclass
                    -- a clone of this database has the same numbers
                    and locks.database = this_database
                    and locks.pid is distinct from pg_backend_pid()
            );
        return false;
    end if;
    if exists (
        select from pg_catalog.pg_locks as locks
        where
            locks.relation = 'fencepost.task'::regclass
            and locks.database = this_database
            and locks.virtualtransaction = any(current.awaited)
    ) then
        return false;
    end if;
    update fencepost.horizon set end_ms = attached_ms, awaited = null;
    return true;
end
$$;

insert into fencepost.horizon (floor_ms, end_ms, attached_ms)
select first.ms, first.ms, first.ms
from (
    select fencepost.id_ms(((clock_timestamp() at time zone 'UTC')::date - 1)::timestamp at time zone 'UTC') as ms
) as first;

do $$
begin
    perform fencepost.make_partitions(14);
    update fencepost.horizon set end_ms = attached_ms;
end
$$;
