-- Ordered keys, and dispatch keys that are remembered for a chosen time or replace a task that waits.
--
-- Tasks of a namespace with the same concurrency key stand in one line. At most key_limit of them (a route's setting)
-- are let go at a time: their hold bit 2 is clear, and they may run, run, or wait for a retry. The others have the bit
-- set, so the claim never sees them. The line's order is (visible_after, id) until a row is let go, which makes it due
-- then.
--
-- A row is let go under the key's turn only, an advisory lock: by the enqueue that finds the key free, or by free_keys
-- after somebody has ended. Who adds a row that waits holds the key's door, shared, until its commit, so that free_keys
-- sees that there is something that it can't see yet. Trying for a turn never waits; a door is waited for only while a
-- call of free_keys is at work, and that one never waits for anybody. What nobody is sure to come back to stands in
-- key_look.

set local lock_timeout = '5s';

alter table fencepost.live add column key_hash bigint;

-- Those of a key that are let go, and those that wait for it. Rows without a key stand in neither.
create index live_key_free on fencepost.live (key_hash)
where key_hash is not null and hold & 2 = 0;

create index live_key_held on fencepost.live (key_hash, visible_after, id)
where key_hash is not null and hold & 2 <> 0;

alter table fencepost.route
add column key_limit int not null default 1 check (key_limit between 1 and 1000),
add column on_dead_key text not null default 'skip' check (on_dead_key in ('skip', 'stop'));

-- Keys that a replica is to look at once they are due: rows that were scheduled, rows whose enqueue could not find out
-- whether the key is free, keys of which a task has ended where no replica saw it.
create table fencepost.key_look (
    look_id bigint generated always as identity primary key,
    key_hash bigint not null,
    due_at timestamptz not null
) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

create index key_look_due on fencepost.key_look (due_at, look_id);

-- Dead letters that stop their keys. Each had been let go when it died, and keeps that place until the row is gone.
create table fencepost.stopped_key (
    letter_id bigint not null primary key,
    key_hash bigint not null,
    stopped_at timestamptz not null
);

create index stopped_key_hash on fencepost.stopped_key (key_hash);

-- The number that stands for a key of a namespace. Two keys with the same number share a line, which does no harm.
create function fencepost.key_hash(namespace int, concurrency_key text) returns bigint
language sql immutable parallel safe
as $$ select hashtextextended(concurrency_key, namespace) $$;

-- The same by the route.
create function fencepost.key_of(route int, concurrency_key text) returns bigint
language sql stable
as $$
select fencepost.key_hash(known.namespace_id, concurrency_key)
from fencepost.route as known
where known.route_id = route and concurrency_key is not null
$$;

-- How a task that no replica has waits: scheduled, ready or held. One that waits for its key and is not due yet waits
-- for its time.
create function fencepost.waiting_state(hold smallint, visible_after timestamptz) returns text
language sql stable parallel safe
as $$
select
    case
        when hold & 5 <> 0 then 'held'
        when visible_after > statement_timestamp() then 'scheduled'
        when hold <> 0 then 'held'
        else 'ready'
    end
$$;

-- Has a replica look at these keys as soon as this transaction has committed, or with its next look by itself.
create function fencepost.look_soon(keys bigint[]) returns void
language plpgsql
as $$
begin
    insert into fencepost.key_look (key_hash, due_at)
    select one.key, clock_timestamp()
    from (select distinct asked.key from unnest(keys) as asked (key) where asked.key is not null) as one;
    if found and fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', 'keys');
    end if;
end
$$;

-- How many tasks of each key are let go (counted up to its limit), and whether a further one may be: none waits in
-- front of it, and no dead letter stops the key. Each call has a snapshot of its own. The clock is read after it, so
-- that no row which it shows is taken for one that is scheduled.
create function fencepost.look_at_keys(keys bigint[], limits int[], only_these bigint[])
returns table (key_hash bigint, let_go int, is_free boolean)
language plpgsql
-- Making a plan takes ten times as long as the look, and it is the same one whatever is asked: also where a producer's
-- session made it while the queue was as good as empty.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select
        asked.key_hash,
        passed.tasks,
        passed.tasks < asked.key_limit
        -- A scalar subquery: no plan that was made while few keys were stopped reads all that are by now.
        and (
            select stop.letter_id
            from fencepost.stopped_key as stop
            where stop.key_hash = asked.key_hash
            limit 1
        ) is null
        and coalesce(
            (
                select live.visible_after
                from fencepost.live
                where live.key_hash = asked.key_hash and live.hold & 2 <> 0
                order by live.visible_after, live.id
                limit 1
            ) > clock_timestamp(),
            true
        )
    from unnest(keys, limits) as asked (key_hash, key_limit)
    cross join lateral (
        select count(*)::int as tasks
        from (
            select from fencepost.live
            where live.key_hash = asked.key_hash and live.hold & 2 = 0
            limit asked.key_limit
        ) as let_go
    ) as passed
    where asked.key_hash = any(only_these);
end
$$;

-- Takes the turns of those of these keys that are free, and says how many of each are let go already. A key in
-- `unsure` may be free, and this transaction can't know: it is somebody else's turn. The keys that are not free keep
-- their doors open until the commit. No more keys than the server's lock table has room for by default, for every
-- connection at once: once that is full, everybody's statements fail.
create function fencepost.try_turns(
    keys bigint[], limits int[], out mine bigint[], out let_go int[], out unsure bigint[]
)
language plpgsql
as $$
#variable_conflict use_column
declare
    most constant int := 64;
    used int := coalesce(nullif(current_setting('fencepost.key_locks', true), ''), '0')::int;
    taken bigint[];
    others bigint[];
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        -- Whoever looks now sees what was there when the transaction began.
        unsure := keys;
        return;
    end if;
    unsure := keys[greatest(most - used, 0) + 1:];
    limits := limits[:greatest(most - used, 0)];
    keys := keys[:greatest(most - used, 0)];
    perform set_config('fencepost.key_locks', (used + cardinality(keys))::text, true);

    taken := array(
        select looked.key_hash from fencepost.look_at_keys(keys, limits, keys) as looked
        where looked.is_free and pg_try_advisory_xact_lock(1178944610, hashint8(looked.key_hash))
    );
    others := array(select asked.key from unnest(keys) as asked (key) where asked.key <> all(taken));
    if cardinality(others) > 0 then
        perform pg_advisory_xact_lock_shared(1178944611, hashint8(other.key)) from unnest(others) as other (key);
        -- Behind their doors, so whoever ends one of theirs from here on comes back for this transaction's rows.
        others := array(
            select looked.key_hash from fencepost.look_at_keys(keys, limits, others) as looked where looked.is_free
        );
        taken := taken || array(
            select other.key from unnest(others) as other (key)
            where pg_try_advisory_xact_lock(1178944610, hashint8(other.key))
        );
    end if;
    select array_agg(looked.key_hash), array_agg(looked.let_go)
    into mine, let_go
    from fencepost.look_at_keys(keys, limits, taken) as looked
    where looked.is_free;
    unsure := unsure || array(select other.key from unnest(others) as other (key) where other.key <> all(taken));
end
$$;

-- For each task of a batch the number of its key and the hold bit for that: 0 lets it go, 2 keeps it in the line.
-- Tasks of one key come in their order; one that is due later waits for its time, and the others don't wait for it.
create function fencepost.take_turns(
    ids bigint[],
    owners bigint[],
    routes int[],
    concurrency_key text[],
    delay interval[],
    run_at timestamptz[],
    enqueued timestamptz,
    out key_hashes bigint[],
    out key_holds smallint[]
)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    due_at timestamptz[];
    limits int[];
    keys bigint[];
    first_limits int[];
    turns record;
begin
    select
        array_agg(
            case when given.id = given.owner then fencepost.key_hash(route.namespace_id, given.key) end
            order by given.place
        ),
        array_agg(greatest(given.run_at, enqueued + coalesce(given.delay, interval '0')) order by given.place),
        array_agg(route.key_limit order by given.place)
    into key_hashes, due_at, limits
    from unnest(ids, owners, routes, concurrency_key, delay, run_at)
        with ordinality as given (id, owner, route_id, key, delay, run_at, place)
    inner join fencepost.route on route.route_id = given.route_id;

    insert into fencepost.key_look (key_hash, due_at)
    select distinct given.key_hash, given.due_at
    from unnest(key_hashes, due_at) as given (key_hash, due_at)
    where given.key_hash is not null and given.due_at > enqueued;

    select array_agg(first.key_hash order by first.place), array_agg(first.key_limit order by first.place)
    into keys, first_limits
    from (
        select distinct on (given.key_hash) given.key_hash, given.key_limit, given.place
        from unnest(key_hashes, due_at, limits) with ordinality as given (key_hash, due_at, key_limit, place)
        where given.key_hash is not null and given.due_at <= enqueued
        order by given.key_hash, given.place
    ) as first;
    select tried.* into turns from fencepost.try_turns(keys, first_limits) as tried where keys is not null;
    if cardinality(turns.unsure) > 0 then
        perform fencepost.look_soon(turns.unsure);
    end if;

    key_holds := array(
        select
            case
                when standing.key_hash is null then 0
                when
                    not standing.is_later
                    and bool_and(turn.let_go + standing.rank <= standing.key_limit)
                        over (partition by standing.key_hash, standing.is_later order by standing.place)
                    then 0
                else 2
            end
        from (
            select
                given.*,
                given.due_at > enqueued as is_later,
                row_number() over (partition by given.key_hash, given.due_at > enqueued order by given.place) as rank
            from unnest(key_hashes, due_at, limits) with ordinality as given (key_hash, due_at, key_limit, place)
        ) as standing
        left join unnest(turns.mine, turns.let_go) as turn (key_hash, let_go) on turn.key_hash = standing.key_hash
        order by standing.place
    );
end
$$;

-- Lets go of these keys what may go now, and answers for each the routes that have a ready row more, and whether to
-- come again soon: it is somebody else's turn, a row was locked, or the key has room and somebody is adding a row to
-- it. `looks` are the rows of key_look that this answers; they go once nothing is left to come again for. It never
-- waits, so nobody waits for it for longer than it takes.
create function fencepost.free_keys(keys bigint[], looks bigint[] default null)
returns table (key_hash bigint, again boolean, routes int[])
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    mine bigint[];
    quiet bigint[];
    busy bigint[];
    due int[];
begin
    mine := array(
        select asked.key from unnest(keys) as asked (key)
        where pg_try_advisory_xact_lock(1178944610, hashint8(asked.key))
    );
    quiet := array(
        select asked.key from unnest(mine) as asked (key)
        where pg_try_advisory_xact_lock(1178944611, hashint8(asked.key))
    );

    -- The statement's snapshot is newer than the locks.
    for key_hash, again, routes in
        with head as materialized (
            select
                asked.key as key_hash,
                route.key_limit,
                case
                    when first.visible_after <= clock_timestamp()
                        and (
                            select stop.letter_id
                            from fencepost.stopped_key as stop
                            where stop.key_hash = asked.key
                            limit 1
                        ) is null
                        then route.key_limit
                end as places
            from unnest(mine) as asked (key)
            left join lateral (
                select live.route_id, live.visible_after
                from fencepost.live
                where live.key_hash = asked.key and live.hold & 2 <> 0
                order by live.visible_after, live.id
                limit 1
            ) as first on true
            left join fencepost.route on route.route_id = first.route_id
        ), room as materialized (
            select head.*, passed.tasks as let_go, head.places - passed.tasks as free_places
            from head
            cross join lateral (
                select count(*)::int as tasks
                from (
                    select from fencepost.live
                    where live.key_hash = head.key_hash and live.hold & 2 = 0
                    limit head.places
                ) as let_go
                where head.places is not null
            ) as passed
        ), standing as materialized (
            -- One more than there is room for: the limit of its route may be a higher one.
            select
                room.key_hash, following.id, following.rank,
                bool_and(room.let_go + following.rank <= route.key_limit and following.visible_after <= clock_timestamp())
                    over (partition by room.key_hash order by following.rank) as goes
            from room
            cross join lateral (
                select
                    live.id, live.route_id, live.visible_after,
                    row_number() over (order by live.visible_after, live.id) as rank
                from fencepost.live
                where live.key_hash = room.key_hash and live.hold & 2 <> 0
                order by live.visible_after, live.id
                limit case when room.free_places > 0 then room.free_places + 1 else 0 end
            ) as following
            inner join fencepost.route on route.route_id = following.route_id
        ), locked as materialized (
            select live.id
            from fencepost.live
            where live.id = any(array(select standing.id from standing where standing.goes))
            order by live.id
            for update skip locked
        ), in_order as materialized (
            -- Nobody passes one that is locked.
            select
                standing.id,
                -- looked up in a hash of the subquery, where a join would go through all of them for each
                bool_and(standing.id in (select locked.id from locked))
                    over (partition by standing.key_hash order by standing.rank) as goes
            from standing
            where standing.goes
        ), freed as (
            update fencepost.live
            -- Due from now on, as if it were enqueued now: a row that came in far behind would have every claim of its
            -- lane begin there again.
            set hold = live.hold & 5, visible_after = clock_timestamp()
            where live.id = any(array(select in_order.id from in_order where in_order.goes))
            returning live.key_hash, live.route_id, live.hold
        )
        select
            room.key_hash,
            meant.tasks > moved.tasks
            or coalesce(meant.tasks > room.free_places, false)
            -- There is room, and somebody is about to add to the line.
            or (coalesce(room.free_places > moved.tasks, true) and room.key_hash <> all(quiet)),
            moved.routes
        from room
        cross join lateral (
            select count(*)::int as tasks from standing where standing.key_hash = room.key_hash and standing.goes
        ) as meant
        cross join lateral (
            select
                count(*)::int as tasks,
                array_agg(distinct freed.route_id) filter (where freed.hold = 0) as routes
            from freed
            where freed.key_hash = room.key_hash
        ) as moved
    loop
        if again then
            busy := busy || key_hash;
        end if;
        due := due || routes;
        return next;
    end loop;

    return query
    select asked.key, true, null::int[] from unnest(keys) as asked (key) where asked.key <> all(mine);
    if cardinality(looks) > 0 then
        delete from fencepost.key_look
        where
            key_look.look_id = any(
                array(
                    select answered.look_id from fencepost.key_look as answered
                    where
                        answered.look_id = any(looks) and answered.key_hash = any(mine)
                        and answered.key_hash <> all(coalesce(busy, '{}'))
                    for update skip locked
                )
            );
    end if;
    if cardinality(due) > 0 and fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', route.route_id::text)
        from (select distinct given.route_id from unnest(due) as given (route_id)) as route;
    end if;
end
$$;

-- Lets a key go on that a dead letter has stopped, whatever becomes of the letter. Answers how many had stopped it.
create function fencepost.resume_key(namespace text, concurrency_key text) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    letters bigint[];
begin
    if not fencepost.is_name(concurrency_key) then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'concurrency_key',
            'concurrency_key must be 1 to 200 characters without control characters.'
        );
    end if;
    letters := array(
        select stop.letter_id
        from fencepost.stopped_key as stop
        inner join fencepost.namespace as known on known.name = coalesce(namespace, 'default')
        where stop.key_hash = fencepost.key_hash(known.namespace_id, concurrency_key)
        order by stop.letter_id
    );
    return fencepost.lift_stops(letters);
end
$$;

-- The letters stop their keys no longer, where they did.
create function fencepost.lift_stops(letters bigint[]) returns int
language plpgsql
as $$
declare
    keys bigint[];
begin
    with locked as materialized (
        select stop.letter_id, stop.key_hash
        from fencepost.stopped_key as stop
        where stop.letter_id = any(letters)
        order by stop.letter_id
        for update
    ), lifted as (
        delete from fencepost.stopped_key as stop
        where stop.letter_id = any(array(select locked.letter_id from locked))
    )
    select array_agg(locked.key_hash) into keys from locked;
    perform fencepost.look_soon(keys);
    return coalesce(cardinality(keys), 0);
end
$$;

-- Discards letters; what their tasks did stays in history. Answers those that were there.
create or replace function fencepost.discard_dead_letters(letters bigint[]) returns setof bigint
language plpgsql
as $$
begin
    return query
    with locked as materialized (
        select letter.id
        from fencepost.dead_letter as letter
        where letter.id = any(letters)
        order by letter.id
        for update
    )

    delete from fencepost.dead_letter as letter
    where letter.id = any(array(select locked.id from locked))
    returning letter.id;
    perform fencepost.lift_stops(letters);
end
$$;

create or replace function fencepost.are_options(options jsonb) returns boolean
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
                            -- an outcome says when a task has ended, so no window is of use beyond the age of history
                            when entry.key = 'dedupe_for_ms' and jsonb_typeof(entry.value) = 'number'
                                then
                                    (entry.value #>> '{}')::numeric between 0 and 31536000000
                                    and (entry.value #>> '{}')::numeric = trunc((entry.value #>> '{}')::numeric)
                            when entry.key = 'on_duplicate' then entry.value in ('"keep"', '"replace"')
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

create function fencepost.known_options() returns text
language sql immutable parallel safe
as $$
select
    'options must be a JSON object with known keys only: backoff_base_ms, backoff_max_ms (integers, 0 to 2147483647),'
    || ' backoff_multiplier (a number, 1 to 100), dedupe_for_ms (an integer, 0 to 31536000000), on_duplicate (keep or'
    || ' replace), trace_context (a string).'
$$;

-- Raises for the first task of the batch that asks for something out of bounds.
create or replace function fencepost.check_tasks(
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
            fencepost.known_options()
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

drop function fencepost.enqueue;

drop function fencepost.enqueue_bytes;

drop function fencepost.enqueue_many;

drop function fencepost.put_tasks;

drop function fencepost.take_keys;

drop function fencepost.take_key;

-- Ends a task that waits and was never delivered, for the one that takes its place. False: it was delivered, is a
-- workflow's member, or somebody has its row.
create function fencepost.replace_task(task bigint, successor bigint) returns boolean
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    old fencepost.live;
begin
    select live.* into old from fencepost.live where live.id = task for update skip locked;
    if not found or old.state <> 0 or old.fence <> 0 or old.run_id is not null then
        return false;
    end if;
    delete from fencepost.live where live.id = old.id;
    insert into fencepost.outcome (id, ended_at, attempt, state, error_class, error_message)
    values (old.id, clock_timestamp(), old.attempt, 3, 'replaced', format('Task %s has taken its place.', successor));
    -- one that waited for its key leaves no place in there
    if old.key_hash is not null and old.hold & 2 = 0 then
        perform fencepost.look_soon(array[old.key_hash]);
    end if;
    return true;
end
$$;

-- The task that owns the key from now on: `candidate` where the key is free or expired, or where it `replaces` one that
-- waits. A concurrent taker of the same key is waited for. Above READ COMMITTED the wait can end in a serialisation
-- failure, for the caller.
create function fencepost.take_key(
    namespace int, wanted text, candidate bigint, remembered interval, replaces boolean, out owner bigint,
    out replaced boolean
)
language plpgsql
as $$
declare
    holder fencepost.dispatch_key;
begin
    replaced := false;
    loop
        insert into fencepost.dispatch_key (namespace_id, key, task_id, remember)
        values (namespace, wanted, candidate, remembered)
        on conflict do nothing;
        if found then
            owner := candidate;
            return;
        end if;
        if replaces then
            -- Of many that replace at once each one replaces the one before.
            select * into holder from fencepost.dispatch_key as held
            where held.namespace_id = namespace and held.key = wanted
            for update;
        else
            select * into holder from fencepost.dispatch_key as held
            where held.namespace_id = namespace and held.key = wanted;
        end if;
        if found then
            if not fencepost.key_expired(holder.task_id, holder.remember) then
                replaced := replaces and fencepost.replace_task(holder.task_id, candidate);
                if not replaced then
                    owner := holder.task_id;
                    return;
                end if;
            end if;
            update fencepost.dispatch_key as held
            set task_id = candidate, remember = remembered
            where held.namespace_id = namespace and held.key = wanted and held.task_id = holder.task_id;
            if found then
                owner := candidate;
                return;
            end if;
        end if;
    end loop;
end
$$;

-- The owner of each task's key, in order: its own id where it has no key; and whether it has replaced another task.
-- Keys are taken in sorted order, so that two batches never wait for each other both ways. Of tasks of one batch with
-- the same key the first one has it, or the last one that replaces.
create function fencepost.take_keys(
    ids bigint[], routes int[], dispatch_key text[], options jsonb[], out owners bigint[], out replaced boolean[]
)
language plpgsql
as $$
declare
    remembered interval := (select limits.remember from fencepost.limits);
    item record;
    taken record;
    place bigint;
begin
    owners := ids;
    replaced := array_fill(false, array[cardinality(ids)]);
    for item in
        select
            route.namespace_id,
            given.key,
            array_agg(given.place) as places,
            coalesce(max(given.place) filter (where given.replaces), min(given.place)) as winner
        from (
            select asked.*, coalesce(asked.options ->> 'on_duplicate' = 'replace', false) as replaces
            from unnest(routes, dispatch_key, options) with ordinality as asked (route_id, key, options, place)
            where asked.key is not null
        ) as given
        inner join fencepost.route on route.route_id = given.route_id
        group by route.namespace_id, given.key
        order by route.namespace_id, given.key
    loop
        select key.owner, key.replaced into taken
        from
            fencepost.take_key(
                item.namespace_id, item.key, ids[item.winner],
                coalesce(
                    (options[item.winner] ->> 'dedupe_for_ms')::double precision * interval '1 millisecond', remembered
                ),
                coalesce(options[item.winner] ->> 'on_duplicate' = 'replace', false)
            ) as key;
        foreach place in array item.places loop
            owners[place] := taken.owner;
        end loop;
        replaced[item.winner] := taken.replaced;
    end loop;
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
) returns table (ordinal bigint, task_id bigint, created boolean, answer text)
language plpgsql
as $$
#variable_conflict use_column
declare
    tasks int := cardinality(payload);
    ids bigint[];
    owners bigint[];
    replaced boolean[];
    routes int[];
    key_hashes bigint[];
    key_holds smallint[];
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
        select taken.owners, taken.replaced into owners, replaced
        from fencepost.take_keys(ids, routes, dispatch_key, options) as taken;
    end if;
    enqueued := clock_timestamp();
    if cardinality(array_remove(concurrency_key, null)) > 0 then
        select turns.key_hashes, turns.key_holds into key_hashes, key_holds
        from fencepost.take_turns(ids, owners, routes, concurrency_key, delay, run_at, enqueued) as turns;
    end if;

    with given as materialized (
        select input.*
        from unnest(
            ids, owners, routes, payload, content_type, dispatch_key, delay, run_at, priority, max_attempts,
            run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options, key_hashes,
            key_holds
        ) with ordinality as input (
            id, owner, route_id, payload, content_type, dispatch_key, delay, run_at, priority, max_attempts,
            run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options, key_hash,
            key_hold, place
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
    insert into fencepost.live (
        id, route_id, priority, visible_after, start_by, run_timeout_ms, run_id, hold, key_hash
    )
    select
        given.id, given.route_id, coalesce(given.priority, 1), due.at, due.at + given.schedule_to_start,
        extract(epoch from given.run_timeout) * 1000, run, held | coalesce(given.key_hold, 0::smallint), given.key_hash
    from given
    cross join lateral (
        -- Never in the past: such a row would lie below the low-water marks.
        select greatest(given.run_at, enqueued + coalesce(given.delay, interval '0')) as at
    ) as due;

    if held = 0 and fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', due.route_id::text)
        from (
            select distinct given.route_id
            from unnest(routes, ids, owners, delay, run_at, key_holds)
                as given (route_id, id, owner, delay, run_at, key_hold)
            where
                given.id = given.owner
                and coalesce(given.key_hold, 0) = 0
                and coalesce(given.run_at, enqueued + coalesce(given.delay, interval '0')) < enqueued + interval '1 second'
        ) as due;
    end if;

    return query
    select
        input.ordinal, input.owner, input.id = input.owner,
        case when input.id <> input.owner then 'existing' when input.replaced then 'replaced' else 'created' end
    from unnest(ids, owners, replaced) with ordinality as input (id, owner, replaced, ordinal)
    order by input.ordinal;
end
$$;

-- Enqueues a batch in the caller's transaction and answers (ordinal from 1, id, created, answer) in order. Each array
-- holds one value a task, one for all, or is null for the default. `answer` is created, existing or replaced.
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
) returns table (ordinal bigint, task_id bigint, created boolean, answer text)
language plpgsql
as $$
#variable_conflict use_variable
begin
    return query
    select put.ordinal, put.task_id, put.created, put.answer
    from fencepost.put_tasks(
        task_queue, task_type, payload, content_type, namespace, dispatch_key, delay, run_at, priority, node,
        max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options,
        null, null, null, 0::smallint
    ) as put;
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
) returns table (task_id bigint, created boolean, answer text)
language plpgsql
as $$
#variable_conflict use_variable
begin
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
) returns table (task_id bigint, created boolean, answer text)
language plpgsql
as $$
#variable_conflict use_variable
begin
    return query
    select enqueued.task_id, enqueued.created, enqueued.answer
    from fencepost.enqueue_bytes(
        task_queue, task_type, convert_to(payload::text, 'UTF8'), 'application/json', namespace,
        dispatch_key, delay, run_at, priority, node, max_attempts, run_timeout, heartbeat_timeout,
        schedule_to_start, settle, concurrency_key, labels, options
    ) as enqueued;
end
$$;

-- Ends the task as done, together with the handler's own writes, when the delivery that the token names still
-- counts: an unfinished task of the same epoch that nobody asked to cancel. A repeat of a completion that was
-- recorded is no error. The row stays locked until the caller commits, which delays this one task only.
create or replace function fencepost.complete_bytes(token text, result bytea, content_type text) returns void
language plpgsql
-- A handler's session may keep a plan from when the queue was as good as empty.
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_variable
declare
    parts numeric[] := regexp_match(token, '^(\d{1,19})\.(\d{1,10})\.(\d{1,10})$')::numeric[];
    ended fencepost.live;
    flow fencepost.workflow;
    result_limit int := (select limits.result_bytes from fencepost.limits);
begin
    if parts is null or parts[1] > 9223372036854775807 or greatest(parts[2], parts[3]) > 2147483647 then
        perform fencepost.refuse('FP014', 'invalid_token', 'token', 'token is not one that a task was delivered with.');
    end if;
    if content_type = 'application/json' and result is not null then
        result := (fencepost.normal_payloads(array[result], array[content_type], 'result'))[1];
    end if;
    if octet_length(result) > result_limit then
        perform fencepost.refuse(
            'FP016', 'result_too_large', 'result',
            format('result has %s bytes as stored; the limit is %s.', octet_length(result), result_limit)
        );
    end if;

    -- By id alone, so that a row that changed meanwhile is seen as it is now.
    select live.* into ended from fencepost.live where live.id = parts[1]::bigint for update;
    if not found or ended.epoch <> parts[2]::int then
        if
            not exists (
                select from fencepost.outcome
                where
                    outcome.id = parts[1]::bigint and outcome.state = 1
                    and outcome.epoch = parts[2]::int and outcome.fence = parts[3]::int
            )
        then
            perform fencepost.refuse(
                'FP012', 'superseded', 'token', 'this delivery no longer counts: another one has the task, or it has ended.'
            );
        end if;
        return;
    end if;
    if ended.run_id is not null then
        select workflow.* into flow from fencepost.workflow where workflow.run_id = ended.run_id;
    end if;
    if ended.cancel_requested or flow.state <> 'running' then
        perform fencepost.refuse('FP013', 'cancel_requested', 'token', 'the task is being cancelled.');
    end if;
    delete from fencepost.live where live.id = ended.id;
    insert into fencepost.outcome (
        id, ended_at, claimed_at, attempt, epoch, fence, state, result_type, result
    ) values (
        ended.id, clock_timestamp(), ended.claimed_at, ended.attempt, ended.epoch, parts[3]::int, 1,
        case when result is not null then content_type end, result
    );
    if ended.run_id is not null then
        -- The replica that is told of this end, or a chore, looks whether the run has ended too.
        insert into fencepost.workflow_event (run_id, kind, task_id, decides)
        values (ended.run_id, 'member_done', ended.id, coalesce(flow.mode = 'race', false));
    end if;
    if ended.key_hash is not null then
        perform fencepost.look_soon(array[ended.key_hash]);
    end if;
end
$$;

-- One row a task, its state spelled out.
create or replace view fencepost.tasks as
select
    task.id,
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    case
        when outcome.state = 1 then 'done'
        when outcome.state = 2 then 'failed'
        when outcome.state = 3 then 'cancelled'
        when live.state = 1 then 'running'
        when live.id is not null then fencepost.waiting_state(live.hold, live.visible_after)
    end as state,
    coalesce(live.attempt, outcome.attempt) as attempt,
    live.losses,
    live.priority,
    coalesce(live.cancel_requested, false) as cancel_requested,
    task.enqueued_at,
    live.visible_after,
    coalesce(live.claimed_at, outcome.claimed_at) as claimed_at,
    outcome.ended_at,
    live.dispatcher,
    outcome.worker,
    outcome.error_class,
    outcome.error_message,
    task.origin,
    task.dispatch_key,
    coalesce(task.labels, '{}') as labels,
    task.content_type,
    octet_length(task.payload) as payload_bytes,
    octet_length(outcome.result) as result_bytes,
    task.workflow_id,
    task.run_id,
    task.ordinal,
    task.concurrency_key
from fencepost.task
inner join fencepost.route on route.route_id = task.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
left join fencepost.live on live.id = task.id
left join fencepost.outcome on outcome.id = task.id;

drop function fencepost.declare_queue;

-- Declares a route, which is made if it is new. `unserved` says what becomes of its due tasks while no live worker
-- serves it: they wait, or (strict) spend an attempt per backoff interval. `max_in_flight` bounds those of its tasks
-- that run at the same time over all replicas (-1 lifts it). `key_limit` is how many of its tasks that share a
-- concurrency key are let into the line at a time, and `on_dead_key` what a dead letter at the head of a key does: skip
-- lets the next one go, stop lets none go until the letter is redriven or discarded, or the key resumed. null keeps
-- what is there.
create function fencepost.declare_queue(
    task_queue text,
    task_type text,
    namespace text default 'default',
    node text default null,
    unserved text default null,
    max_in_flight int default null,
    key_limit int default null,
    on_dead_key text default null
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
    if key_limit not between 1 and 1000 then
        perform fencepost.refuse('FP064', 'invalid_key_limit', 'key_limit', 'key_limit must be 1 to 1000.');
    end if;
    if on_dead_key is not null and on_dead_key not in ('skip', 'stop') then
        perform fencepost.refuse('FP018', 'invalid_policy', 'on_dead_key', 'on_dead_key must be skip or stop.');
    end if;
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
        key_limit = coalesce(declare_queue.key_limit, route.key_limit),
        on_dead_key = coalesce(declare_queue.on_dead_key, route.on_dead_key),
        version = route.version + 1
    where route.route_id = declared_id;
    perform fencepost.announce_settings();
    return declared_id;
end
$$;

-- Redrives letters: a new task each, with the same body, origin, workflow and priority, the epoch moved on and the
-- fence kept, due now. Attempts and losses begin anew; the dispatch key stays with the dead task. Ids of the new
-- tasks grow with those of the letters. A letter that stops its key gives its place in the line to the new task; any
-- other task with a key comes in behind what waits for that. Answers, for each letter, the new task or why there is
-- none.
create or replace function fencepost.redrive_dead_letters(
    letters bigint[], forced boolean default false, clear_pin boolean default false
) returns table (letter_id bigint, task_id bigint, refused text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    asked bigint[] := array(select distinct given.id from unnest(letters) as given (id) order by given.id);
    chosen bigint[];
    routes int[];
    ids bigint[];
    started timestamptz;
    keys text[];
    key_holds smallint[];
    stopped bigint[];
begin
    forced := coalesce(forced, false);
    -- Locked by id alone; the statements after it see the rows as they are under the lock.
    perform letter.id from fencepost.dead_letter as letter where letter.id = any(asked) order by letter.id for update;
    -- And the runs that members are to come back to, so that none ends meanwhile.
    perform flow.run_id
    from fencepost.workflow as flow
    where
        flow.run_id = any(array(
            select letter.run_id from fencepost.dead_letter as letter
            where letter.id = any(asked) and letter.run_id is not null
        ))
    order by flow.run_id
    for update;
    return query
    select one.id, null::bigint, judged.refusal
    from unnest(asked) as one (id)
    left join fencepost.dead_letter as letter on letter.id = one.id
    cross join lateral (
        select case when letter.id is null then 'not_found' else fencepost.letter_refusal(letter, forced) end as refusal
    ) as judged
    where judged.refusal is not null;
    select array_agg(letter.id order by letter.id), array_agg(letter.route_id order by letter.id)
    into chosen, routes
    from fencepost.dead_letter as letter
    where letter.id = any(asked) and fencepost.letter_refusal(letter, forced) is null;
    if chosen is null then
        return;
    end if;
    if clear_pin then
        routes := fencepost.unpinned_routes(routes);
        return query
        select given.id, null::bigint, 'queue_not_declared'
        from unnest(chosen, routes) as given (id, route_id)
        where not fencepost.takes_tasks(given.route_id);
        select array_agg(given.id order by given.id), array_agg(given.route_id order by given.id)
        into chosen, routes
        from unnest(chosen, routes) as given (id, route_id)
        where fencepost.takes_tasks(given.route_id);
        if chosen is null then
            return;
        end if;
    end if;
    ids := array(
        select drawn.id from unnest(fencepost.new_ids(cardinality(chosen))) as drawn (id)
        order by drawn.id
    );
    started := clock_timestamp();
    -- A letter that stops its key hands its place on, so that no turn is needed.
    select
        array_agg(case when stop.letter_id is null then letter.concurrency_key end order by letter.id),
        array_agg(stop.key_hash) filter (where stop.letter_id is not null)
    into keys, stopped
    from fencepost.dead_letter as letter
    left join fencepost.stopped_key as stop on stop.letter_id = letter.id
    where letter.id = any(chosen);
    if cardinality(array_remove(keys, null)) > 0 then
        select turns.key_holds into key_holds
        from fencepost.take_turns(ids, ids, routes, keys, null, null, started) as turns;
    end if;

    return query
    with given as materialized (
        select input.letter_id, input.route_id, input.id, input.key_hold
        from unnest(chosen, routes, ids, key_holds) as input (letter_id, route_id, id, key_hold)
    ), marked as (
        update fencepost.dead_letter as letter
        set redriven_as = given.id
        from given
        where letter.id = given.letter_id and letter.redriven_as is null
        returning letter.*, given.route_id as new_route, given.key_hold
    ), unstopped as (
        delete from fencepost.stopped_key as stop
        using marked
        where stop.letter_id = marked.id
        returning stop.letter_id
    ), body as (
        insert into fencepost.task (
            id, origin, enqueued_at, route_id, max_attempts, run_timeout_ms, heartbeat_timeout_ms,
            schedule_to_start_ms, settle_accepted, workflow_id, run_id, ordinal, content_type, concurrency_key,
            labels, options, payload
        )
        select
            marked.redriven_as, marked.origin, started, marked.new_route, marked.max_attempts,
            marked.run_timeout_ms, marked.heartbeat_timeout_ms, marked.schedule_to_start_ms, marked.settle_accepted,
            marked.workflow_id, marked.run_id, marked.ordinal, marked.content_type, marked.concurrency_key,
            marked.labels, marked.options, marked.payload
        from marked
    ), unfinished as (
        insert into fencepost.live (
            id, route_id, priority, visible_after, start_by, run_timeout_ms, epoch, fence, run_id, hold, key_hash
        )
        select
            marked.redriven_as, marked.new_route, marked.priority, started,
            started + marked.schedule_to_start_ms * interval '1 millisecond', marked.run_timeout_ms,
            marked.epoch + 1, marked.fence, marked.run_id,
            case
                when marked.run_id is null then 0::smallint
                else fencepost.rejoin_workflow(marked.run_id, marked.ordinal, marked.redriven_as)
            end
            | case
                when marked.concurrency_key is null or unstopped.letter_id is not null then 0::smallint
                -- a stop that somebody has lifted meanwhile
                when fencepost.key_of(marked.new_route, marked.concurrency_key) = any(stopped) then 2::smallint
                else marked.key_hold
            end,
            fencepost.key_of(marked.new_route, marked.concurrency_key)
        from marked
        left join unstopped on unstopped.letter_id = marked.id
    )
    select marked.id, marked.redriven_as, null::text from marked;

    perform fencepost.look_soon(stopped);

    -- Advice for replicas that sleep, as at an enqueue.
    if fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', due.route_id::text)
        from (select distinct given.route_id from unnest(routes) as given (route_id)) as due;
    end if;
end
$$;

-- Runs a workflow again under a new run id: `members` unfinished stages anew whatever is not done and keeps the
-- results of the others, all stages everything. A run that goes on ends as cancelled, and so do its members. The
-- copies are new tasks with idempotency keys of their own: what a handler did for the earlier run does not stand for
-- this one.
create or replace function fencepost.rerun_workflow(
    workflow bigint,
    members text default 'unfinished',
    ordered_by text default '',
    reason text default ''
) returns bigint
language plpgsql
as $$
declare
    earlier fencepost.workflow := fencepost.lock_workflow(workflow);
    flow fencepost.workflow := earlier;
    note jsonb := fencepost.order_note(ordered_by, reason);
    anew bigint[];
    ids bigint[];
    keys bigint[];
    staged bigint;
    kept bigint;
begin
    if members is null or members not in ('unfinished', 'all') then
        perform fencepost.refuse('FP035', 'invalid_rerun', 'members', 'members must be unfinished or all.');
    end if;
    if earlier.state = 'running' then
        perform fencepost.end_run(earlier, 'cancelled', note || '{"rerun": true}');
    end if;
    flow.run_id := (fencepost.new_ids(1))[1];
    flow.run_number := earlier.run_number + 1;
    insert into fencepost.workflow (run_id, workflow_id, run_number, namespace_id, name, mode, continuation)
    values (
        flow.run_id, flow.workflow_id, flow.run_number, flow.namespace_id, flow.name, flow.mode, flow.continuation
    );
    perform fencepost.tell_run(
        flow.run_id, 'rerun', null, note || jsonb_build_object('of_run', earlier.run_id::text, 'members', members)
    );
    perform fencepost.tell_run(earlier.run_id, 'rerun_as', null, jsonb_build_object('run', flow.run_id::text));

    anew := array(
        select member.task_id from fencepost.workflow_member as member where member.run_id = earlier.run_id
        except
        select told.task_id
        from fencepost.workflow_event as told
        where
            told.run_id = earlier.run_id and told.kind in ('member_done', 'member_kept')
            and members = 'unfinished'
        order by task_id
    );
    ids := fencepost.new_ids(cardinality(anew));
    with copied as materialized (
        select given.id, body.*, before.priority
        from unnest(ids, anew) as given (id, earlier_id)
        cross join lateral (
            select
                task.route_id, task.max_attempts, task.run_timeout_ms, task.heartbeat_timeout_ms,
                task.schedule_to_start_ms, task.settle_accepted, task.ordinal, task.content_type,
                task.concurrency_key, task.labels, task.options, task.payload
            from fencepost.task
            where task.id = given.earlier_id
            limit 1
        ) as body
        cross join lateral (
            select member.priority
            from fencepost.workflow_member as member
            where member.run_id = earlier.run_id and member.ordinal = body.ordinal
            limit 1
        ) as before
    ), bodies as (
        insert into fencepost.task (
            id, origin, enqueued_at, route_id, max_attempts, run_timeout_ms, heartbeat_timeout_ms,
            schedule_to_start_ms, settle_accepted, workflow_id, run_id, ordinal, content_type, concurrency_key,
            labels, options, payload
        )
        select
            copied.id, copied.id, clock_timestamp(), copied.route_id, copied.max_attempts, copied.run_timeout_ms,
            copied.heartbeat_timeout_ms, copied.schedule_to_start_ms, copied.settle_accepted, flow.workflow_id,
            flow.run_id, copied.ordinal, copied.content_type, copied.concurrency_key, copied.labels, copied.options,
            copied.payload
        from copied
    ), listed as (
        insert into fencepost.workflow_member (run_id, ordinal, task_id, priority)
        select flow.run_id, copied.ordinal, copied.id, copied.priority
        from copied
    ), due as (
        insert into fencepost.live (
            id, route_id, priority, visible_after, start_by, run_timeout_ms, run_id, hold, key_hash
        )
        select
            copied.id, copied.route_id, copied.priority, clock_timestamp(),
            clock_timestamp() + copied.schedule_to_start_ms * interval '1 millisecond', copied.run_timeout_ms,
            flow.run_id,
            -- behind what the key has in its line
            case when copied.concurrency_key is null then 0 else 2 end,
            fencepost.key_hash(flow.namespace_id, copied.concurrency_key)
        from copied
    )
    select
        count(*),
        array_agg(fencepost.key_hash(flow.namespace_id, copied.concurrency_key))
            filter (where copied.concurrency_key is not null)
    into staged, keys
    from copied;
    perform fencepost.look_soon(keys);
    if staged < cardinality(anew) then
        perform fencepost.refuse(
            'FP036', 'history_gone', 'workflow_id',
            format('%s members have left history and can''t run again.', cardinality(anew) - staged)
        );
    end if;

    -- What has no copy keeps its place. The index tells, since no join is sure to be made by sets here.
    with kept_members as (
        insert into fencepost.workflow_member (run_id, ordinal, task_id, priority)
        select flow.run_id, before.ordinal, before.task_id, before.priority
        from fencepost.workflow_member as before
        where before.run_id = earlier.run_id
        on conflict do nothing
        returning workflow_member.task_id
    )
    insert into fencepost.workflow_event (run_id, kind, task_id, decides)
    select flow.run_id, 'member_kept', kept_members.task_id, flow.mode = 'race'
    from kept_members;
    get diagnostics kept = row_count;
    perform fencepost.tell_run(
        flow.run_id, 'staged', null, jsonb_build_object('members', staged, 'first_ordinal', 1, 'kept', kept)
    );
    if fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', due.route_id::text)
        from (
            select distinct live.route_id from fencepost.live where live.run_id = flow.run_id and live.hold = 0
        ) as due;
    end if;
    perform fencepost.finish_run(flow.run_id);
    return flow.run_id;
end
$$;
