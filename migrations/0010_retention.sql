-- Retention: what is known of the days that are over, and the steps by which a day leaves history.
--
-- A day's partitions go from attached to detach pending, to detached, to dropped. Each arrow is a statement of its
-- own; whoever comes next finds where the last one stopped, so a crash between any two is finished by the next tick.

set local lock_timeout = '5s';

create table fencepost.history_day (
    day date not null primary key,
    -- When nothing that was enqueued on that day was unfinished any more, as far as anybody has looked: no task of it
    -- has ended later. Null while something is unfinished. Known without an index on outcome.ended_at, which every
    -- settlement would pay for.
    finished_at timestamptz,
    -- Results that ended before are removed; null before the first pass.
    results_to timestamptz,
    -- The pass that is under way removes what ended before the first, and has come to the id in the second.
    pass_to timestamptz,
    pass_id bigint
);

-- Which replica does a chore that no transaction can hold together, and until when. A holder that is late does no
-- harm: each step is safe to be done by two.
create table fencepost.lease (
    name text not null primary key,
    dispatcher bigint not null,
    until timestamptz not null
);

-- Keys are forgotten in the order of their tasks.
create index dispatch_key_task on fencepost.dispatch_key (task_id);

-- The day partitions of task, outcome and failure, those that a detach has left behind included; `place` is the
-- order in which those of one day go. The body goes first: what has none is seen by nobody.
create function fencepost.history_partitions() returns table (
    parent text,
    place int,
    child text,
    child_id oid,
    day date,
    low bigint,
    high bigint,
    attached boolean,
    pending boolean
)
language sql stable
as $$
select
    parents.parent,
    parents.place,
    found.relname::text,
    found.oid,
    dated.day,
    fencepost.id_ms(dated.day::timestamp at time zone 'UTC') << 22,
    fencepost.id_ms((dated.day + 1)::timestamp at time zone 'UTC') << 22,
    inherits.inhrelid is not null,
    coalesce(inherits.inhdetachpending, false)
from (values ('task', 1), ('outcome', 2), ('failure', 3)) as parents (parent, place)
inner join pg_catalog.pg_class as found
    on
        found.relnamespace = 'fencepost'::regnamespace
        and found.relkind = 'r'
        and found.relname ~ ('^' || parents.parent || '_[0-9]{8}$')
left join pg_catalog.pg_inherits as inherits
    on
        inherits.inhrelid = found.oid
        and inherits.inhparent = ('fencepost.' || parents.parent)::regclass
-- The planner may ask for the date of a table with another name before it leaves that out.
cross join lateral (
    select case when found.relname ~ '_[0-9]{8}$' then to_date(right(found.relname, 8), 'YYYYMMDD') end as day
) as dated
$$;

-- Looks which days are over and have nothing unfinished. Day by day a look into the index of live. A producer that
-- has taken ids of that day and not committed holds a lock on its partition of task; it is asked for first, so that
-- its row is either seen there or in live.
create function fencepost.note_days() returns void
language plpgsql
as $$
declare
    span fencepost.horizon := (select horizon from fencepost.horizon);
    this_database oid := (select pg_database.oid from pg_database where pg_database.datname = current_database());
    item record;
    written boolean;
    unfinished boolean;
begin
    for item in
        select listed.day, listed.child_id, listed.low, listed.high
        from fencepost.history_partitions() as listed
        where
            listed.parent = 'task' and listed.attached and not listed.pending
            -- Ids are taken moments before their rows are written; past the horizon they still fall into its last day.
            and listed.high >> 22 <= fencepost.id_ms(clock_timestamp() - interval '1 hour')
            and listed.high >> 22 < span.end_ms
        order by listed.day
    loop
        written := exists (
            select from pg_catalog.pg_locks as locks
            where
                locks.relation = item.child_id
                and locks.database = this_database
                and locks.mode = 'RowExclusiveLock'
                and locks.pid is distinct from pg_backend_pid()
        );
        unfinished := exists (select from fencepost.live where live.id >= item.low and live.id < item.high);
        insert into fencepost.history_day as noted (day, finished_at)
        values (item.day, case when not written and not unfinished then clock_timestamp() end)
        on conflict (day) do update
            set finished_at = case when not unfinished then coalesce(noted.finished_at, excluded.finished_at) end
            where
                noted.finished_at is distinct from
                case when not unfinished then coalesce(noted.finished_at, excluded.finished_at) end;
    end loop;
end
$$;

-- The next step of a day that has been finished for `history` (null: none goes): finalize, detach or drop, with the
-- statement of the first two, which can't run in a function. What a crash has left half done comes first. A day that
-- keeps an unfinished task is kept and holds up no other: nothing looks a task up by anything but its own day. What
-- dead letters were lost to stays as long as they do.
create function fencepost.next_history_step(history interval) returns table (
    step text,
    parent text,
    child text,
    statement text
)
language plpgsql
as $$
#variable_conflict use_column
declare
    chosen record;
begin
    select
        listed.*,
        case when listed.pending then 'finalize' when listed.attached then 'detach' else 'drop' end as step
    into chosen
    from fencepost.history_partitions() as listed
    left join fencepost.history_day as noted on noted.day = listed.day
    where
        listed.pending
        or not listed.attached
        or (
            noted.finished_at <= clock_timestamp() - history
            and not exists (select from fencepost.live where live.id >= listed.low and live.id < listed.high)
            and (
                listed.parent <> 'failure'
                or not exists (
                    select from fencepost.dead_letter
                    where dead_letter.id >= listed.low and dead_letter.id < listed.high
                )
            )
        )
    order by not listed.pending, listed.attached, listed.day, listed.place
    limit 1;
    if not found then
        return;
    end if;
    if chosen.step = 'detach' and chosen.parent = 'task' then
        -- A clock that steps back takes its ids from what is left.
        update fencepost.horizon set floor_ms = chosen.high >> 22 where floor_ms < chosen.high >> 22;
    end if;
    return query
    select
        chosen.step,
        chosen.parent,
        chosen.child,
        case chosen.step
            when 'finalize'
                then format('alter table fencepost.%I detach partition fencepost.%I finalize', chosen.parent, chosen.child)
            when 'detach'
                then
                    format(
                        'alter table fencepost.%I detach partition fencepost.%I concurrently', chosen.parent, chosen.child
                    )
        end;
end
$$;

-- Drops what has been detached. Under its lock nobody can have an unfinished task of that day unseen: should there be
-- one after all, from a transaction that was open for the whole retention, the partition is attached again.
create function fencepost.drop_history(parent text, child text) returns boolean
language plpgsql
as $$
declare
    chosen record;
begin
    execute format('lock table fencepost.%I in access exclusive mode', child);
    select listed.* into chosen
    from fencepost.history_partitions() as listed
    where listed.parent = drop_history.parent and listed.child = drop_history.child;
    if not found or chosen.attached then
        return false;
    end if;
    if exists (select from fencepost.live where live.id >= chosen.low and live.id < chosen.high) then
        perform fencepost.make_partition(parent, chosen.day);
        update fencepost.history_day set finished_at = null where day = chosen.day;
        return false;
    end if;
    execute format('drop table fencepost.%I', child);
    delete from fencepost.history_day
    where day = chosen.day and not exists (select from fencepost.history_partitions() as left_over where left_over.day = chosen.day);
    return true;
end
$$;

-- Removes the bytes of results that ended longer ago than `keep`, a batch of one day at a time; their type stays, which
-- tells them from tasks that had none. A day is walked once it has been finished for so long; one that keeps an
-- unfinished task is walked a day later, and again when it is finished. Answers how many rows it has looked at.
create function fencepost.expire_results(keep interval, most int) returns int
language plpgsql
as $$
declare
    cutoff timestamptz := statement_timestamp() - keep;
    walked record;
    looked int;
    last_id bigint;
begin
    select noted.*, listed.low, listed.high into walked
    from fencepost.history_day as noted
    inner join fencepost.history_partitions() as listed
        on listed.day = noted.day and listed.parent = 'outcome' and listed.attached and not listed.pending
    where
        noted.pass_to is not null
        or (
            noted.results_to is null
            and (
                noted.finished_at <= cutoff
                or (noted.day + 2)::timestamp at time zone 'UTC' <= cutoff
            )
        )
        or (noted.results_to < noted.finished_at and noted.finished_at <= cutoff)
    order by noted.pass_to is null, noted.day
    limit 1
    for update of noted skip locked;
    if not found then
        return 0;
    end if;
    walked.pass_to := coalesce(walked.pass_to, cutoff);
    walked.pass_id := coalesce(walked.pass_id, walked.low - 1);
    with batch as materialized (
        select outcome.id, outcome.result is not null and outcome.ended_at < walked.pass_to as expired
        from fencepost.outcome
        where outcome.id > walked.pass_id and outcome.id < walked.high
        order by outcome.id
        limit most
    ), emptied as (
        update fencepost.outcome
        set result = null
        where
            outcome.id > walked.pass_id and outcome.id < walked.high
            and outcome.id = any(array(select batch.id from batch where batch.expired))
    )
    select count(*), max(batch.id) into looked, last_id from batch;
    update fencepost.history_day
    set
        pass_to = case when looked = most then walked.pass_to end,
        pass_id = case when looked = most then last_id end,
        results_to = case when looked = most then history_day.results_to else walked.pass_to end
    where day = walked.day;
    return looked;
end
$$;

-- Forgets runs of workflows that are settled and ended longer ago than `age`: at most so many rows in one call, a run
-- with the last of its own. The first call that meets a run hides it, so that nobody sees or runs again what is left
-- of it, and frees the caller's key with the last run of its workflow. Answers how many rows are gone; less than the
-- batch: that was all.
create function fencepost.forget_workflows(age interval, batch int) returns bigint
language plpgsql
-- Of a table that has never been analysed the planner would read and sort all there is.
set enable_bitmapscan = off
set enable_seqscan = off
as $$
declare
    chosen fencepost.workflow;
    gone bigint := 0;
    rows bigint;
begin
    loop
        select workflow.* into chosen
        from fencepost.workflow
        where workflow.settled and workflow.ended_at < clock_timestamp() - age
        order by workflow.ended_at
        limit 1
        for update skip locked;
        if not found then
            return gone;
        end if;
        update fencepost.workflow set forgotten = true where workflow.run_id = chosen.run_id and not workflow.forgotten;
        delete from fencepost.workflow_key as known
        where
            known.workflow_id = chosen.workflow_id
            and not exists (
                select from fencepost.workflow as kept
                where kept.workflow_id = chosen.workflow_id and not kept.forgotten
            );
        -- By their places, since a plan by keys may look at all rows of the run for each; nobody moves them.
        delete from fencepost.workflow_member as member
        where
            member.ctid = any(
                array(
                    select first.ctid from fencepost.workflow_member as first
                    where first.run_id = chosen.run_id
                    order by first.run_id, first.ordinal
                    limit batch - gone
                )
            );
        get diagnostics rows = row_count;
        gone := gone + rows;
        delete from fencepost.workflow_event as event
        where
            event.ctid = any(
                array(
                    select first.ctid from fencepost.workflow_event as first
                    where first.run_id = chosen.run_id
                    order by first.run_id, first.event_id
                    limit batch - gone
                )
            );
        get diagnostics rows = row_count;
        gone := gone + rows;
        if gone >= batch then
            return gone;
        end if;
        delete from fencepost.workflow where workflow.run_id = chosen.run_id;
        gone := gone + 1;
    end loop;
end
$$;
