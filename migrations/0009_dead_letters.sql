-- Dead letters: found, discarded and redriven by operators, and told to their owners. Every door calls these functions.

set local lock_timeout = '5s';

create index dead_letter_dead_at on fencepost.dead_letter (dead_at, id);

create index dead_letter_origin on fencepost.dead_letter (origin);

-- A redrive by filter: a durable operation, driven by whichever replica locks its row. What it takes up stands in
-- redrive_item since its start, so that letters which die later are never among them.
create table fencepost.redrive (
    redrive_id bigint generated always as identity primary key,
    filter jsonb not null,
    forced boolean not null,
    clear_pin boolean not null,
    -- letters a second; null is as fast as it goes
    rate double precision check (rate > 0),
    -- so many go first, and the others only once these have ended and not too many of them have died again
    canary int check (canary > 0),
    canary_share double precision not null check (canary_share between 0 and 1),
    canary_passed boolean not null default false,
    state text not null default 'running' check (state in ('running', 'stopped', 'halted', 'done')),
    -- why it is stopped or halted
    detail text not null default '',
    started_by text not null default '',
    reason text not null default '',
    total bigint not null,
    redriven bigint not null default 0,
    skipped bigint not null default 0,
    -- the letter that was looked at last
    cursor bigint not null default 0,
    -- the next letter goes no earlier
    next_at timestamptz not null default clock_timestamp(),
    started_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp(),
    ended_at timestamptz
);

create index redrive_running on fencepost.redrive (next_at)
where state = 'running';

-- No foreign key: its check would cost more than all else at the start. forget_redrives deletes both.
create table fencepost.redrive_item (
    redrive_id bigint not null,
    letter_id bigint not null,
    -- the task that was made of it, or why there is none
    task_id bigint,
    skipped text,
    primary key (redrive_id, letter_id)
);

-- Whom a namespace tells of its dead letters. Apart from `namespace`, since the secret is nobody else's.
create table fencepost.dead_letter_hook (
    namespace_id int not null primary key,
    notify boolean not null default false,
    webhook text,
    secret text,
    check ((webhook is null) = (secret is null))
);

-- What is yet to be told, written with the letter where its namespace has a hook; gone once told or given up.
create table fencepost.dead_letter_event (
    event_id bigint generated always as identity primary key,
    letter_id bigint not null,
    namespace_id int not null,
    kind text not null check (kind in ('notify', 'webhook')),
    tries int not null default 0,
    next_at timestamptz not null default clock_timestamp(),
    created_at timestamptz not null default clock_timestamp(),
    last_error text
) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

create index dead_letter_event_due on fencepost.dead_letter_event (namespace_id, next_at)
where kind = 'webhook';

create index dead_letter_event_notify on fencepost.dead_letter_event (event_id)
where kind = 'notify';

create type fencepost.letter_filter as (
    routes int array,
    cause text,
    error_class text,
    dead_before timestamptz,
    dead_after timestamptz,
    redriven boolean,
    judged boolean,
    -- nothing in it narrows the letters down
    takes_all boolean
);

-- Reads a filter: a JSON object of namespace, task_queue, task_type, node, cause, error_class (strings), dead_before,
-- dead_after (RFC 3339), older_than_ms, newer_than_ms (ages by the database's clock), redriven and judged (booleans).
create function fencepost.read_letter_filter(filter jsonb) returns fencepost.letter_filter
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    given jsonb;
    rule fencepost.letter_filter;
    fault text;
    bounds timestamptz[];
begin
    if coalesce(jsonb_typeof(filter), '') <> 'object' then
        perform fencepost.refuse('FP040', 'invalid_filter', 'filter', 'filter must be a JSON object.');
    end if;
    given := jsonb_strip_nulls(filter);
    select member.key into fault
    from jsonb_each(given) as member
    where
        case
            when member.key in ('namespace', 'task_queue', 'task_type', 'node', 'cause', 'error_class')
                then not (jsonb_typeof(member.value) = 'string' and fencepost.is_name(member.value #>> '{}'))
            when member.key in ('dead_before', 'dead_after') then jsonb_typeof(member.value) <> 'string'
            when member.key in ('older_than_ms', 'newer_than_ms')
                then
                    jsonb_typeof(member.value) <> 'number'
                    or (member.value #>> '{}')::numeric not between 0 and 1000000000000
            when member.key in ('redriven', 'judged') then jsonb_typeof(member.value) <> 'boolean'
            else true
        end
    order by member.key
    limit 1;
    if found then
        perform fencepost.refuse(
            'FP040', 'invalid_filter', fault,
            fault || ' is none of namespace, task_queue, task_type, node, cause, error_class (names), dead_before,'
            || ' dead_after (times), older_than_ms, newer_than_ms (0 to 10^12), redriven, judged (true or false).'
        );
    end if;
    begin
        bounds := array[
            (fencepost.read_times(array[given ->> 'dead_before'], 'dead_before'))[1],
            (fencepost.read_times(array[given ->> 'dead_after'], 'dead_after'))[1]
        ];
    exception
        when sqlstate 'FP005' then
            get stacked diagnostics fault = column_name;
            perform fencepost.refuse('FP040', 'invalid_filter', fault, sqlerrm);
    end;
    if given ?| array['namespace', 'task_queue', 'task_type', 'node'] then
        rule.routes := array(
            select route.route_id
            from fencepost.route
            inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
            where
                namespace.name = coalesce(given ->> 'namespace', namespace.name)
                and route.task_queue = coalesce(given ->> 'task_queue', route.task_queue)
                and route.task_type = coalesce(given ->> 'task_type', route.task_type)
                and route.node = coalesce(given ->> 'node', route.node)
        );
    end if;
    rule.cause := given ->> 'cause';
    rule.error_class := given ->> 'error_class';
    rule.dead_before := least(
        bounds[1],
        statement_timestamp() - (given ->> 'older_than_ms')::double precision * interval '1 millisecond'
    );
    rule.dead_after := greatest(
        bounds[2],
        statement_timestamp() - (given ->> 'newer_than_ms')::double precision * interval '1 millisecond'
    );
    rule.redriven := (given ->> 'redriven')::boolean;
    rule.judged := (given ->> 'judged')::boolean;
    rule.takes_all := given - array['redriven', 'judged'] = '{}';
    return rule;
end
$$;

-- The filter of a call that changes letters: one that narrows nothing down is taken only when the caller says so.
create function fencepost.read_letter_choice(filter jsonb, all_letters boolean) returns fencepost.letter_filter
language plpgsql stable
as $$
declare
    rule fencepost.letter_filter := fencepost.read_letter_filter(filter);
begin
    if rule.takes_all and not coalesce(all_letters, false) then
        perform fencepost.refuse(
            'FP041', 'filter_empty', 'all', 'this filter takes every dead letter there is: narrow it down, or say all.'
        );
    end if;
    return rule;
end
$$;

create function fencepost.letter_fits(letter fencepost.dead_letter, rule fencepost.letter_filter) returns boolean
language sql immutable parallel safe
as $$
select
    (rule.routes is null or letter.route_id = any(rule.routes))
    and (rule.cause is null or letter.cause = rule.cause)
    and (rule.error_class is null or letter.error_class = rule.error_class)
    and (rule.dead_before is null or letter.dead_at < rule.dead_before)
    and (rule.dead_after is null or letter.dead_at >= rule.dead_after)
    and (rule.redriven is null or (letter.redriven_as is not null) = rule.redriven)
    and (rule.judged is null or letter.judged = rule.judged)
$$;

-- Why a letter can't be redriven; null when it can. Force overrides the owner's judgement and nothing else.
create function fencepost.letter_refusal(letter fencepost.dead_letter, forced boolean) returns text
language sql stable
as $$
select
    case
        when letter.redriven_as is not null then 'already_redriven'
        when letter.judged and not forced then 'judged'
        when fencepost.workflow_is_over(letter.run_id) then 'workflow_is_over'
    end
$$;

-- How many letters a filter takes.
create function fencepost.count_dead_letters(filter jsonb, all_letters boolean default false) returns bigint
language plpgsql stable
as $$
declare
    rule fencepost.letter_filter := fencepost.read_letter_choice(filter, all_letters);
begin
    return (select count(*) from fencepost.dead_letter as letter where fencepost.letter_fits(letter, rule));
end
$$;

-- Discards letters; what their tasks did stays in history. Answers those that were there.
create function fencepost.discard_dead_letters(letters bigint[]) returns setof bigint
language sql
as $$
with locked as materialized (
    select letter.id
    from fencepost.dead_letter as letter
    where letter.id = any(letters)
    order by letter.id
    for update
)

delete from fencepost.dead_letter as letter
where letter.id = any(array(select locked.id from locked))
returning letter.id
$$;

-- Discards the first letters by id that a filter takes, behind `after` and dead by `until` (null: by now). Answers how
-- many, and where the next call goes on: null when nothing is left.
create function fencepost.discard_matching(
    filter jsonb,
    all_letters boolean default false,
    after bigint default 0,
    until timestamptz default null,
    batch int default 500
) returns table (discarded bigint, last_id bigint, bound timestamptz)
language plpgsql
as $$
#variable_conflict use_variable
declare
    rule fencepost.letter_filter := fencepost.read_letter_choice(filter, all_letters);
    chosen bigint[];
begin
    bound := coalesce(until, clock_timestamp());
    chosen := array(
        select letter.id from fencepost.dead_letter as letter
        where letter.id > after and letter.dead_at <= bound and fencepost.letter_fits(letter, rule)
        order by letter.id
        limit batch
    );
    discarded := (select count(*) from fencepost.discard_dead_letters(chosen));
    if cardinality(chosen) = batch then
        last_id := chosen[batch];
    end if;
    return next;
end
$$;

-- The same routes without their node, made where they are new.
create function fencepost.unpinned_routes(routes int[]) returns int[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    namespaces text[];
    queues text[];
    types text[];
    nodes text[] := array_fill(null::text, array[cardinality(routes)]);
    found_routes int[];
begin
    select
        array_agg(namespace.name order by given.ordinal),
        array_agg(route.task_queue order by given.ordinal),
        array_agg(route.task_type order by given.ordinal)
    into namespaces, queues, types
    from unnest(routes) with ordinality as given (route_id, ordinal)
    inner join fencepost.route on route.route_id = given.route_id
    inner join fencepost.namespace on namespace.namespace_id = route.namespace_id;
    perform fencepost.make_routes(namespaces, queues, types, nodes);
    found_routes := fencepost.find_routes(namespaces, queues, types, nodes);
    if array_position(found_routes, null) is not null then
        raise exception using
            errcode = 'serialization_failure', message = 'a concurrent transaction made this route first';
    end if;
    return found_routes;
end
$$;

-- Whether an enqueue would take a task for this route, which its namespace may have to be told of first.
create function fencepost.takes_tasks(route int) returns boolean
language sql stable
as $$
select known.declared or not namespace.require_declared_queues
from fencepost.route as known
inner join fencepost.namespace on namespace.namespace_id = known.namespace_id
where known.route_id = route
$$;

-- Redrives letters: a new task each, with the same body, origin, workflow and priority, the epoch moved on and the
-- fence kept, due now. Attempts and losses begin anew; the dispatch key stays with the dead task. Ids of the new
-- tasks grow with those of the letters. Answers, for each letter, the new task or why there is none.
create function fencepost.redrive_dead_letters(
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

    return query
    with given as materialized (
        select input.letter_id, input.route_id, input.id
        from unnest(chosen, routes, ids) as input (letter_id, route_id, id)
    ), marked as (
        update fencepost.dead_letter as letter
        set redriven_as = given.id
        from given
        where letter.id = given.letter_id and letter.redriven_as is null
        returning letter.*, given.route_id as new_route
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
            id, route_id, priority, visible_after, start_by, run_timeout_ms, epoch, fence, run_id, hold
        )
        select
            marked.redriven_as, marked.new_route, marked.priority, started,
            started + marked.schedule_to_start_ms * interval '1 millisecond', marked.run_timeout_ms,
            marked.epoch + 1, marked.fence, marked.run_id,
            case
                when marked.run_id is null then 0::smallint
                else fencepost.rejoin_workflow(marked.run_id, marked.ordinal, marked.redriven_as)
            end
        from marked
    )
    select marked.id, marked.redriven_as, null::text from marked;

    -- Advice for replicas that sleep, as at an enqueue.
    if fencepost.somebody_sleeps() then
        perform pg_notify('fencepost', due.route_id::text)
        from (select distinct given.route_id from unnest(routes) as given (route_id)) as due;
    end if;
end
$$;

-- Tells the replicas that a redrive may go on, which they look for with each beat anyway. A session with two-phase
-- commit sets fencepost.notify to off.
create function fencepost.notify_redrives() returns void
language plpgsql
as $$
begin
    if current_setting('fencepost.notify', true) is distinct from 'off' then
        perform pg_notify('fencepost', 'redrive');
    end if;
end
$$;

-- Starts a redrive of all letters that a filter takes and that can be redriven now, or with `dry_run` only counts
-- them. Replicas drive it from here on.
create function fencepost.start_redrive(
    filter jsonb,
    all_letters boolean default false,
    rate double precision default null,
    canary int default null,
    canary_share double precision default null,
    forced boolean default false,
    clear_pin boolean default false,
    started_by text default '',
    reason text default '',
    dry_run boolean default false
) returns table (redrive_id bigint, total bigint)
language plpgsql
as $$
#variable_conflict use_variable
declare
    rule fencepost.letter_filter := fencepost.read_letter_choice(filter, all_letters);
    fault text := case
        when rate is not null and not coalesce(rate between 0.001 and 1000000, false) then 'rate'
        when canary not between 1 and 10000 then 'canary'
        when canary_share is not null and not coalesce(canary_share between 0 and 1, false) then 'canary_share'
        when canary_share is not null and canary is null then 'canary_share'
    end;
begin
    forced := coalesce(forced, false);
    clear_pin := coalesce(clear_pin, false);
    if fault is not null then
        perform fencepost.refuse(
            'FP042', 'invalid_redrive', fault,
            'rate must be 0.001 to 1000000 letters a second, canary 1 to 10000 letters, canary_share 0 to 1 and with a'
            || ' canary only.'
        );
    end if;
    if dry_run then
        total := (
            select count(*) from fencepost.dead_letter as letter
            where fencepost.letter_fits(letter, rule) and fencepost.letter_refusal(letter, forced) is null
        );
        return next;
        return;
    end if;
    insert into fencepost.redrive (
        filter, forced, clear_pin, rate, canary, canary_share, started_by, reason, total
    ) values (
        jsonb_strip_nulls(filter), forced, clear_pin, rate, canary, coalesce(canary_share, 0.5),
        coalesce(left(started_by, 200), ''), coalesce(left(reason, 4096), ''), 0
    ) returning redrive.redrive_id into redrive_id;
    insert into fencepost.redrive_item (redrive_id, letter_id)
    select redrive_id, letter.id from fencepost.dead_letter as letter
    where fencepost.letter_fits(letter, rule) and fencepost.letter_refusal(letter, forced) is null
    order by letter.id;
    get diagnostics total = row_count;
    update fencepost.redrive as operation
    set
        total = start_redrive.total,
        state = case when start_redrive.total = 0 then 'done' else operation.state end,
        ended_at = case when start_redrive.total = 0 then clock_timestamp() end
    where operation.redrive_id = start_redrive.redrive_id;
    perform fencepost.notify_redrives();
    return next;
end
$$;

-- Stops a redrive: no letter goes after this has been committed. Stopping what is stopped or over is no error; answers
-- the state, null when there is no such redrive.
create function fencepost.stop_redrive(redrive_id bigint, reason text default '') returns text
language plpgsql
as $$
#variable_conflict use_variable
declare
    operation fencepost.redrive;
begin
    select redrive.* into operation from fencepost.redrive where redrive.redrive_id = stop_redrive.redrive_id for update;
    if operation.state = 'running' then
        update fencepost.redrive
        set state = 'stopped', detail = left(stop_redrive.reason, 4096), updated_at = clock_timestamp()
        where redrive.redrive_id = operation.redrive_id;
        return 'stopped';
    end if;
    return operation.state;
end
$$;

-- Lets a stopped redrive go on, or one that its canary halted, which then goes on without the canary.
create function fencepost.resume_redrive(redrive_id bigint) returns text
language plpgsql
as $$
#variable_conflict use_variable
declare
    operation fencepost.redrive;
begin
    select redrive.* into operation
    from fencepost.redrive
    where redrive.redrive_id = resume_redrive.redrive_id
    for update;
    if operation.state = 'done' then
        perform fencepost.refuse(
            'FP043', 'redrive_over', 'redrive_id', 'this redrive is done; start another one for what has died since.'
        );
    elsif operation.state in ('stopped', 'halted') then
        update fencepost.redrive
        set
            state = 'running',
            detail = '',
            canary_passed = operation.canary_passed or operation.state = 'halted',
            next_at = clock_timestamp(),
            updated_at = clock_timestamp()
        where redrive.redrive_id = operation.redrive_id;
        perform fencepost.notify_redrives();
        return 'running';
    end if;
    return operation.state;
end
$$;

-- What the first tasks of a redrive came to: it waits for their ends, halts, or they have passed; and a sentence. One
-- whose history is gone has ended, and not by dying again.
create function fencepost.judge_canary(operation fencepost.redrive, out verdict text, out detail text)
language plpgsql stable
as $$
declare
    died int;
    waiting int;
begin
    select
        count(*) filter (where ended.state = 2),
        count(*) filter (where exists (select from fencepost.live where live.id = item.task_id))
    into died, waiting
    from fencepost.redrive_item as item
    left join lateral (
        select outcome.state from fencepost.outcome where outcome.id = item.task_id limit 1
    ) as ended on true
    where item.redrive_id = operation.redrive_id and item.letter_id <= operation.cursor and item.task_id is not null;
    if died > operation.canary_share * operation.redriven then
        verdict := 'halts';
        detail := format('%s of the first %s have died again', died, operation.redriven);
    elsif waiting > 0 then
        verdict := 'waits';
        detail := format('waits for the ends of %s of the first %s', waiting, operation.redriven);
    else
        verdict := 'passed';
        detail := '';
    end if;
end
$$;

-- Moves a redrive on by one small batch, in the caller's transaction, unless another replica is at it. Answers its
-- state and how many letters it took up. The row is locked until the commit, so an operator's stop comes before the
-- batch or after it, and a crash leaves cursor, counts and tasks as they were together.
create function fencepost.drive_redrive(redrive_id bigint, batch int) returns table (state text, took int)
language plpgsql
-- Of a table that has never been analysed the planner would read and sort all there is.
set enable_bitmapscan = off
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    operation fencepost.redrive;
    -- a replica that was away makes up for so much of the rate at most
    window_start timestamptz;
    moment timestamptz := clock_timestamp();
    quota bigint := batch;
    canary record;
    counts record;
begin
    select redrive.* into operation
    from fencepost.redrive
    where redrive.redrive_id = drive_redrive.redrive_id
    for update skip locked;
    if operation.state is distinct from 'running' or operation.next_at > moment then
        return;
    end if;
    window_start := greatest(operation.next_at, moment - interval '500 milliseconds');
    if operation.rate is not null then
        quota := least(quota, floor(extract(epoch from moment - window_start) * operation.rate)::bigint + 1);
    end if;
    if operation.canary is not null and not operation.canary_passed then
        quota := least(quota, operation.canary - operation.redriven);
        -- All of them, or all that there were.
        if quota <= 0 then
            select judged.verdict, judged.detail into canary from fencepost.judge_canary(operation) as judged;
            update fencepost.redrive
            set
                canary_passed = canary.verdict = 'passed',
                state = case when canary.verdict = 'halts' then 'halted' else redrive.state end,
                detail = canary.detail,
                next_at = moment + case when canary.verdict = 'waits' then interval '1 second' else interval '0' end,
                updated_at = moment
            where redrive.redrive_id = operation.redrive_id
            returning redrive.state into state;
            took := 0;
            return next;
            return;
        end if;
    end if;

    with next_items as materialized (
        select item.letter_id, item.ctid as place
        from fencepost.redrive_item as item
        where item.redrive_id = operation.redrive_id and item.letter_id > operation.cursor
        order by item.letter_id
        limit quota
    ), answers as materialized (
        select answer.*
        from fencepost.redrive_dead_letters(
            array(select next_items.letter_id from next_items), operation.forced, operation.clear_pin
        ) as answer
    ), kept as (
        update fencepost.redrive_item as item
        set task_id = answers.task_id, skipped = answers.refused
        from answers
        where
            -- By their places, so that no plan looks at all items; nobody moves those of a locked redrive.
            item.ctid = any(array(select next_items.place from next_items))
            and item.letter_id = answers.letter_id
    )
    select
        count(*)::int as took,
        count(answers.task_id) as redriven,
        coalesce(max(answers.letter_id), operation.cursor) as cursor
    into counts
    from answers;

    took := counts.took;
    update fencepost.redrive
    set
        redriven = operation.redriven + counts.redriven,
        skipped = operation.skipped + counts.took - counts.redriven,
        cursor = counts.cursor,
        next_at = case
            when operation.rate is null then moment
            else window_start + counts.took / operation.rate * interval '1 second'
        end,
        updated_at = moment,
        state = case
            when operation.redriven + operation.skipped + counts.took >= operation.total then 'done' else 'running'
        end,
        ended_at = case when operation.redriven + operation.skipped + counts.took >= operation.total then moment end
    where redrive.redrive_id = operation.redrive_id
    returning redrive.state into state;
    return next;
end
$$;

-- Forgets redrives that have not moved for so long and do not run: at most so many items in one call, an operation with
-- the last of its own. Answers how many rows are gone; less than the batch: that was all. The letters and tasks stay.
create function fencepost.forget_redrives(age interval, batch int) returns bigint
language plpgsql
-- Of a table that has never been analysed the planner would read and sort all there is.
set enable_bitmapscan = off
set enable_seqscan = off
as $$
declare
    chosen bigint;
    gone bigint := 0;
    items bigint;
begin
    loop
        select redrive.redrive_id into chosen
        from fencepost.redrive
        where redrive.state <> 'running' and redrive.updated_at < clock_timestamp() - age
        order by redrive.redrive_id
        limit 1
        for update skip locked;
        if not found then
            return gone;
        end if;
        -- By their places, since a plan by keys may look at all items for each; nobody moves those of a locked redrive.
        delete from fencepost.redrive_item as item
        where
            item.ctid = any(
                array(
                    select first.ctid from fencepost.redrive_item as first
                    where first.redrive_id = chosen
                    order by first.redrive_id, first.letter_id
                    limit batch - gone
                )
            );
        get diagnostics items = row_count;
        gone := gone + items;
        if gone >= batch then
            return gone;
        end if;
        delete from fencepost.redrive where redrive.redrive_id = chosen;
        gone := gone + 1;
    end loop;
end
$$;

-- Sets whom a namespace, which is made if it is new, tells of its dead letters. Null keeps what is there; an empty
-- webhook ends it, with what it was yet to be told. The secret signs the webhook's requests and is shown to nobody.
create function fencepost.set_dead_letter_hook(
    namespace text, webhook text default null, secret text default null, notify boolean default null
) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    chosen int;
    present fencepost.dead_letter_hook;
begin
    if not fencepost.is_name(namespace) then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'namespace', 'namespace must be 1 to 200 characters without control characters.'
        );
    end if;
    if webhook <> '' and (webhook !~ '^https?://[^/?#@\s\\]+([/?][^#\s]*)?$' or char_length(webhook) > 2000) then
        perform fencepost.refuse(
            'FP044', 'invalid_webhook', 'dead_letter_webhook',
            'dead_letter_webhook must be an http or https URL of at most 2000 characters, without user and fragment.'
        );
    end if;
    if secret is not null and (char_length(secret) not between 16 and 1000 or webhook = '') then
        perform fencepost.refuse(
            'FP044', 'invalid_webhook', 'dead_letter_webhook_secret',
            'dead_letter_webhook_secret must be 16 to 1000 characters, and goes with a webhook.'
        );
    end if;
    insert into fencepost.namespace (name)
    select namespace
    where not exists (select from fencepost.namespace as known where known.name = namespace)
    on conflict do nothing;
    chosen := (select known.namespace_id from fencepost.namespace as known where known.name = namespace);
    insert into fencepost.dead_letter_hook (namespace_id) values (chosen) on conflict do nothing;
    select hook.* into present from fencepost.dead_letter_hook as hook where hook.namespace_id = chosen for update;
    present.webhook := nullif(coalesce(webhook, present.webhook), '');
    present.secret := case when present.webhook is not null then coalesce(secret, present.secret) end;
    if (present.webhook is null) <> (present.secret is null) or (present.webhook is null and secret is not null) then
        perform fencepost.refuse(
            'FP044', 'invalid_webhook', 'dead_letter_webhook_secret',
            'dead_letter_webhook and dead_letter_webhook_secret are set together; later each may be changed alone.'
        );
    end if;
    update fencepost.dead_letter_hook as hook
    set webhook = present.webhook, secret = present.secret, notify = coalesce(set_dead_letter_hook.notify, hook.notify)
    where hook.namespace_id = chosen;
    if webhook = '' then
        delete from fencepost.dead_letter_event as event where event.namespace_id = chosen and event.kind = 'webhook';
    end if;
end
$$;
