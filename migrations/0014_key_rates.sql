-- Rates of concurrency keys: how many tasks of a queue with the same one may start in a time.
--
-- A task whose token is not there yet waits in its key's line, out of the claim's sight. free_keys alone gives tokens
-- out, under the key's turn, and says when the next one comes; whoever has called it comes back then.

set local lock_timeout = '5s';

-- So many tasks of each key in a period, and so many at once; a burst of null is what comes in a second.
alter table fencepost.route
add column key_rate_tasks int,
add column key_rate_period_ms int,
add column key_rate_burst int,
add constraint route_key_rate check (
    num_nulls(key_rate_tasks, key_rate_period_ms) in (0, 2)
    and (key_rate_burst is null or key_rate_tasks is not null)
    and key_rate_tasks between 1 and 1000000
    and key_rate_period_ms > 0
    and key_rate_burst between 1 and 1000000
);

-- The tokens of a key in a route that has a rate: when its bucket will be full again. Whoever has the key's turn writes
-- it. No row is a full one.
create table fencepost.key_bucket (
    key_hash bigint not null,
    route_id int not null,
    full_at timestamptz not null,
    primary key (key_hash, route_id)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- The rate of a route for its keys and the bucket of one of them: what one token takes to come, what a full bucket
-- takes, and when it is full. It owes no more than a whole bucket, whatever it was before: the rate has changed, or the
-- clock was set back. Without a rate there is no row.
create function fencepost.key_rate(route int, key bigint, at timestamptz)
returns table (token interval, span interval, full_at timestamptz)
language sql stable
as $$
select rate.token, rate.span, least(greatest(kept.full_at, at), at + rate.span)
-- The limit keeps it a look for one route, also in a plan that was made while there were few.
from (select found.* from fencepost.route as found where found.route_id = route limit 1) as known
cross join lateral (
    select
        known.key_rate_period_ms * interval '1 millisecond' / known.key_rate_tasks as token,
        coalesce(
            known.key_rate_burst, greatest(known.key_rate_tasks * 1000::bigint / known.key_rate_period_ms, 1)
        ) * (known.key_rate_period_ms * interval '1 millisecond' / known.key_rate_tasks) as span
) as rate
left join lateral (
    select stored.full_at
    from fencepost.key_bucket as stored
    where stored.key_hash = key and stored.route_id = route
    limit 1
) as kept on true
where known.key_rate_tasks is not null
$$;

-- What a rate becomes, as before; the names of the fields begin with the prefix.
create function fencepost.change_rate(kept fencepost.rate, rate text, burst int, prefix text) returns fencepost.rate
language plpgsql immutable
as $$
#variable_conflict use_variable
declare
    tasks text := substring(rate from '^([0-9]{1,7})/(?:s|min|h)$');
begin
    if rate <> 'none' and (tasks is null or tasks::int not between 1 and 1000000) then
        perform fencepost.refuse(
            'FP062', 'invalid_rate', prefix || 'rate',
            prefix || 'rate must be a number of tasks from 1 to 1000000 in a second, minute or hour, such as 5/s, 90/min or'
            || ' 1000/h, or none.'
        );
    end if;
    if burst not between 1 and 1000000 then
        perform fencepost.refuse(
            'FP063', 'invalid_burst', prefix || 'burst', prefix || 'burst must be 1 to 1000000 tasks.'
        );
    end if;
    if burst is not null and (rate = 'none' or coalesce(rate, kept.tasks::text) is null) then
        perform fencepost.refuse(
            'FP063', 'invalid_burst', prefix || 'burst', prefix || 'burst goes with a rate, and there is none.'
        );
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

create or replace function fencepost.change_rate(kept fencepost.rate, rate text, burst int) returns fencepost.rate
language sql immutable
as $$ select fencepost.change_rate(kept, rate, burst, '') $$;

-- Sets how many tasks of a route with the same concurrency key may start in a time, over all replicas. The route is
-- declared with that. It binds what is let go after the commit.
create function fencepost.set_key_rate(
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
    select known.key_rate_tasks, known.key_rate_period_ms, known.key_rate_burst into changed
    from fencepost.route as known
    where known.route_id = declared_id
    for update;
    changed := fencepost.change_rate(changed, rate, burst, 'key_');
    update fencepost.route as known
    set
        key_rate_tasks = changed.tasks,
        key_rate_period_ms = changed.period_ms,
        key_rate_burst = changed.burst,
        version = known.version + 1
    where known.route_id = declared_id;
    return declared_id;
end
$$;

-- For each task of a batch the number of its key and the hold bit for that: 0 lets it go, 2 keeps it in the line.
-- Tasks of one key come in their order; one that is due later waits for its time, and the others don't wait for it.
-- Where its queue has a rate for keys, a task waits for free_keys.
create or replace function fencepost.take_turns(
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
        -- of none that goes now: with a rate it is free_keys that lets a task go
        array_agg(case when route.key_rate_tasks is null then route.key_limit else 0 end order by given.place)
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
    ) as first
    where first.key_limit > 0;
    -- Also where another task of its key goes now: the key may have room for more.
    perform fencepost.look_soon(
        array(
            select given.key_hash
            from unnest(key_hashes, due_at, limits) as given (key_hash, due_at, key_limit)
            where given.key_limit = 0 and given.due_at <= enqueued
        )
    )
    where 0 = any(limits);
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

-- Lets go of these keys what may go now. Answers for each how many that are, the routes that have a ready row more, and
-- whether to come again soon: it is somebody else's turn, a row was locked, or the key has room and somebody is adding
-- a row to it. `token_at` is when the token of the next row comes, where that is all it waits for: whoever calls comes
-- back then, and the walk over keys comes by for one that has died. `looks` are the rows of key_look that this answers;
-- they go once nothing is left to come again for. It waits for nobody but a statement that removes full buckets, so
-- nobody waits for it for longer than it takes.
drop function fencepost.free_keys(bigint[], bigint[]);
create function fencepost.free_keys(keys bigint[], looks bigint[] default null)
returns table (key_hash bigint, again boolean, tasks int, routes int[], token_at timestamptz)
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
    for key_hash, again, tasks, routes, token_at in
        with head as materialized (
            select
                asked.key as key_hash,
                first.route_id,
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
            select
                head.key_hash,
                now.at,
                passed.tasks as let_go,
                head.places - passed.tasks as free_places,
                -- No more go than the first one's queue has tokens, unless others stand between.
                least(
                    head.places - passed.tasks,
                    floor(extract(epoch from now.at + rate.span - rate.full_at) / extract(epoch from rate.token))
                )::int as most
            from head
            cross join lateral (select clock_timestamp() as at) as now
            left join lateral fencepost.key_rate(head.route_id, head.key_hash, now.at) as rate on true
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
            -- One more than there is room for: the limit of its route may be a higher one, or another route have tokens.
            select
                following.*,
                bool_and(following.has_place and coalesce(following.starts_at <= following.at, true))
                    over (partition by following.key_hash order by following.rank) as goes
            from (
                select
                    room.key_hash, room.at, waiting.id, waiting.route_id, waiting.rank,
                    bool_and(room.let_go + waiting.rank <= route.key_limit and waiting.visible_after <= room.at)
                        over (partition by room.key_hash order by waiting.rank) as has_place,
                    rate.full_at + waiting.nth * rate.token - rate.span as starts_at,
                    rate.full_at + waiting.nth * rate.token as full_at
                from room
                cross join lateral (
                    select
                        live.id, live.route_id, live.visible_after,
                        row_number() over (order by live.visible_after, live.id) as rank,
                        row_number() over (partition by live.route_id order by live.visible_after, live.id) as nth
                    from (
                        select held.id, held.route_id, held.visible_after
                        from fencepost.live as held
                        where held.key_hash = room.key_hash and held.hold & 2 <> 0
                        order by held.visible_after, held.id
                        limit case when room.free_places > 0 then room.most + 1 else 0 end
                    ) as live
                ) as waiting
                inner join fencepost.route on route.route_id = waiting.route_id
                left join lateral fencepost.key_rate(waiting.route_id, room.key_hash, room.at) as rate on true
            ) as following
        ), locked as materialized (
            select live.id
            from fencepost.live
            where live.id = any(array(select standing.id from standing where standing.goes))
            order by live.id
            for update skip locked
        ), in_order as materialized (
            -- Nobody passes one that is locked.
            select
                standing.id, standing.key_hash, standing.route_id, standing.full_at,
                -- looked up in a hash of the subquery, where a join would go through all of them for each
                bool_and(standing.id in (select locked.id from locked))
                    over (partition by standing.key_hash order by standing.rank) as goes
            from standing
            where standing.goes
        ), spent as (
            insert into fencepost.key_bucket (key_hash, route_id, full_at)
            select in_order.key_hash, in_order.route_id, max(in_order.full_at)
            from in_order
            where in_order.goes and in_order.full_at is not null
            group by in_order.key_hash, in_order.route_id
            on conflict on constraint key_bucket_pkey do update set full_at = excluded.full_at
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
            or coalesce(meant.tasks > room.most, false)
            -- There is room, and somebody is about to add to the line.
            or (coalesce(room.free_places > moved.tasks, true) and room.key_hash <> all(quiet)),
            moved.tasks,
            moved.routes,
            meant.token_at
        from room
        cross join lateral (
            select
                count(*) filter (where standing.goes)::int as tasks,
                -- of the first one that does not go
                (array_agg(case when standing.has_place then standing.starts_at end order by standing.rank)
                    filter (where not standing.goes))[1] as token_at
            from standing
            where standing.key_hash = room.key_hash
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
    select asked.key, true, 0, null::int[], null::timestamptz
    from unnest(keys) as asked (key)
    where asked.key <> all(mine);
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

-- Ends a task that waits, was never delivered and is no member of a workflow, since another one takes its place.
-- Answers whether it did.
create or replace function fencepost.replace_task(task bigint, successor bigint) returns boolean
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
    -- Also one that waited for its key: those behind it may have a place or a token where it had none.
    perform fencepost.look_soon(array[old.key_hash]);
    return true;
end
$$;
