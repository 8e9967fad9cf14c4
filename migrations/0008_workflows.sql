-- Workflows: groups of tasks that end together. Every door calls these functions. What changes a run locks its row
-- first, so staging, adding, pausing, redriving and ending come one after the other; the bits and cancels of its
-- members follow in small batches, outside of that lock.

set local lock_timeout = '5s';

-- Whether a task of this run has nothing to come back to: the run has ended, or is no longer known. Tasks of no
-- workflow (null) always have.
create function fencepost.workflow_is_over(run bigint) returns boolean
language plpgsql stable
as $$
begin
    return run is not null and not exists (
        select from fencepost.workflow where workflow.run_id = run and workflow.state = 'running'
    );
end
$$;

create function fencepost.tell_run(run bigint, kind text, task bigint, detail jsonb, decides boolean default false)
returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    insert into fencepost.workflow_event (run_id, kind, task_id, detail, decides)
    values (run, kind, task, detail, decides);
end
$$;

create function fencepost.refuse_over(flow fencepost.workflow) returns void
language plpgsql
as $$
begin
    perform fencepost.refuse(
        'FP031', 'workflow_over', 'workflow_id',
        format('workflow %s is over: run %s has ended as %s.', flow.workflow_id, flow.run_number, flow.state)
    );
end
$$;

-- The newest run of a workflow, its row locked until the end of the transaction.
create function fencepost.lock_workflow(workflow bigint) returns fencepost.workflow
language plpgsql
as $$
declare
    flow fencepost.workflow;
begin
    loop
        select newest.* into flow
        from fencepost.workflow as newest
        where newest.workflow_id = workflow
        order by newest.run_number desc
        limit 1;
        if not found or flow.forgotten then
            perform fencepost.refuse(
                'FP032', 'workflow_not_found', 'workflow_id', format('there is no workflow %s.', workflow)
            );
        end if;
        select locked.* into flow from fencepost.workflow as locked where locked.run_id = flow.run_id for update;
        -- While this waited retention may have taken the run, or a re-run may have come in.
        if
            found and not flow.forgotten and not exists (
                select from fencepost.workflow as newer
                where newer.workflow_id = workflow and newer.run_number > flow.run_number
            )
        then
            return flow;
        end if;
    end loop;
end
$$;

-- What a run's state is, by its mode: null while it goes on. `unfinished`: a member is; `decided`: a member has ended
-- as it takes to end the run (done in a race, failed where one failure ends all); `undone`: a member ended otherwise
-- than done, which counts once none is unfinished. A race without members has nobody who could win it.
create function fencepost.judge_workflow(mode text, unfinished boolean, decided boolean, undone boolean) returns text
language sql immutable parallel safe
as $$
select
    case
        when mode = 'race' and decided then 'done'
        when mode = 'fail_fast' and decided then 'failed'
        when unfinished then null
        when mode = 'race' or undone then 'failed'
        else 'done'
    end
$$;

-- Whether a member has ended otherwise than done. By sets, since no index leads from tasks to events: it is asked
-- once a run.
create function fencepost.has_undone(run bigint) returns boolean
language plpgsql stable
as $$
begin
    return exists (
        select member.task_id from fencepost.workflow_member as member where member.run_id = run
        except
        select told.task_id
        from fencepost.workflow_event as told
        where told.run_id = run and told.kind in ('member_done', 'member_kept')
    );
end
$$;

-- Ends the run whose row the caller has locked; its continuation is enqueued by the same transaction.
create function fencepost.end_run(flow fencepost.workflow, verdict text, detail jsonb default '{}') returns void
language plpgsql
as $$
declare
    continued bigint;
begin
    perform fencepost.tell_run(flow.run_id, 'ended', null, jsonb_build_object('state', verdict) || detail);
    if flow.continuation is not null and verdict <> 'cancelled' then
        continued := fencepost.continue_run(flow, verdict);
    end if;
    update fencepost.workflow
    set
        state = verdict,
        paused = null,
        settled = not exists (select from fencepost.live where live.run_id = flow.run_id),
        continued_as = continued,
        ended_at = clock_timestamp()
    where workflow.run_id = flow.run_id;
end
$$;

-- Ends a run if it is time: its new state, null while it goes on or had ended, `busy` while somebody else has its row.
-- Nobody waits here: the caller comes again. The first statement locks, the following ones see what whoever had the
-- row before has left, so of two that come at once the second one sees all members.
create function fencepost.finish_run(run bigint) returns text
language plpgsql
as $$
declare
    flow fencepost.workflow;
    verdict text;
    unfinished boolean;
begin
    select locked.* into flow from fencepost.workflow as locked where locked.run_id = run for update skip locked;
    if not found then
        return (select 'busy' from fencepost.workflow where workflow.run_id = run and workflow.state = 'running');
    elsif flow.state <> 'running' then
        return null;
    end if;
    unfinished := exists (select from fencepost.live where live.run_id = run);
    verdict := fencepost.judge_workflow(
        flow.mode, unfinished,
        exists (select from fencepost.workflow_event as told where told.run_id = run and told.decides),
        not unfinished and fencepost.has_undone(run)
    );
    if verdict is not null then
        perform fencepost.end_run(flow, verdict);
    end if;
    return verdict;
end
$$;

-- The continuation's input: how each member ended, with its result while all of them fit the payload limit. What does
-- not fit is left out and the input says so: first the results, then the list of members.
create function fencepost.continuation_input(flow fencepost.workflow, verdict text) returns jsonb
language plpgsql
as $$
declare
    payload_limit int := (select limits.payload_bytes from fencepost.limits);
    head jsonb := jsonb_build_object(
        'workflow_id', flow.workflow_id::text, 'run_id', flow.run_id::text, 'name', flow.name, 'state', verdict
    );
    results_fit boolean;
    members jsonb;
begin
    -- The least that a member takes: a list that can't fit is not made first. Nor is one that takes so long that its
    -- statement is cut off, and the run never ends.
    if (
        select count(*) > least(payload_limit / 60, 50000)
        from fencepost.workflow_member as member
        where member.run_id = flow.run_id
    ) then
        return head || '{"members_left_out": true, "results_left_out": true}';
    end if;
    results_fit := (
        select coalesce(sum(octet_length(ended.result)), 0) < payload_limit
        from fencepost.workflow_member as member
        cross join lateral (
            select outcome.result from fencepost.outcome where outcome.id = member.task_id limit 1
        ) as ended
        where member.run_id = flow.run_id
    );
    foreach results_fit in array case when results_fit then array[true, false] else array[false] end loop
        select coalesce(jsonb_agg(fencepost.describe_member(member, results_fit) order by member.ordinal), '[]')
        into members
        from fencepost.workflow_member as member
        where member.run_id = flow.run_id;
        members := head || jsonb_build_object('members', members, 'results_left_out', not results_fit);
        if octet_length(convert_to(members::text, 'UTF8')) <= payload_limit then
            return members;
        end if;
    end loop;
    return head || '{"members_left_out": true, "results_left_out": true}';
end
$$;

create function fencepost.describe_member(member fencepost.workflow_member, with_result boolean) returns jsonb
language plpgsql stable
as $$
declare
    ended fencepost.outcome;
begin
    select outcome.* into ended from fencepost.outcome where outcome.id = member.task_id limit 1;
    return jsonb_strip_nulls(
        jsonb_build_object(
            'ordinal', member.ordinal,
            'task_id', member.task_id::text,
            'state', case
                when ended.state = 1 then 'done'
                when ended.state = 2 then 'failed'
                when ended.state = 3 then 'cancelled'
                when exists (select from fencepost.live where live.id = member.task_id) then 'unfinished'
                -- its outcome has left history
                else 'ended'
            end,
            'error_class', ended.error_class,
            'error_message', ended.error_message,
            'result_type', case when with_result then ended.result_type end,
            -- retention leaves the type and takes the bytes
            'result_expired', case
                when with_result and ended.result_type is not null and ended.result is null then true
            end,
            'result_base64', case
                when with_result and ended.result_type <> 'application/json' then encode(ended.result, 'base64')
            end
        )
    ) || case
        -- beside the others, since a null, or one inside, is a value
        when with_result and ended.result_type = 'application/json' and ended.result is not null
            then jsonb_build_object('result', convert_from(ended.result, 'UTF8')::jsonb)
        else '{}'
    end;
end
$$;

-- Enqueues the continuation; null where it is refused, which must not keep the run from ending: the history says why.
-- It was checked when it was staged, so that takes a setting that has changed since. The subtransaction is one a run.
create function fencepost.continue_run(flow fencepost.workflow, verdict text) returns bigint
language plpgsql
as $$
declare
    continuation jsonb := flow.continuation;
    continued bigint;
    why text;
begin
    select put.task_id into strict continued
    from fencepost.put_tasks(
        array[continuation ->> 'task_queue'], array[continuation ->> 'task_type'],
        array[convert_to(fencepost.continuation_input(flow, verdict)::text, 'UTF8')], null,
        array(select namespace.name from fencepost.namespace where namespace.namespace_id = flow.namespace_id),
        null, fencepost.read_milliseconds(array[(continuation ->> 'delay_ms')::bigint]), null,
        array[(continuation ->> 'priority')::int], array[continuation ->> 'node'],
        array[(continuation ->> 'max_attempts')::int],
        fencepost.read_milliseconds(array[(continuation ->> 'run_timeout_ms')::bigint]),
        fencepost.read_milliseconds(array[(continuation ->> 'heartbeat_timeout_ms')::bigint]),
        fencepost.read_milliseconds(array[(continuation ->> 'schedule_to_start_ms')::bigint]),
        array[continuation ->> 'settle'], array[continuation ->> 'concurrency_key'],
        array[nullif(continuation -> 'labels', 'null')], array[nullif(continuation -> 'options', 'null')],
        null, null, null, 0::smallint
    ) as put;
    perform fencepost.tell_run(flow.run_id, 'continued', continued, null);
    return continued;
exception
    when others then
        get stacked diagnostics why = message_text;
        -- Only what this data causes: anything else (a lock, a lost connection) takes the whole end back.
        if sqlstate not like 'FP%' and sqlstate not like '22%' and sqlstate not like '54%' then
            raise;
        end if;
        perform fencepost.tell_run(flow.run_id, 'continuation_refused', null, jsonb_build_object('reason', why));
        return null;
end
$$;

-- Refuses a continuation that could not be enqueued: the same rules as for any task, checked while there is somebody
-- to tell. Its route is made, so that the end of the run never waits for it.
create function fencepost.check_continuation(continuation jsonb, namespace text) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    fault text;
    texts text[] := array['task_queue', 'task_type', 'node', 'settle', 'concurrency_key'];
    numbers text[] := array[
        'priority', 'max_attempts', 'delay_ms', 'run_timeout_ms', 'heartbeat_timeout_ms', 'schedule_to_start_ms'
    ];
    why text;
    field text;
    slug text;
begin
    if jsonb_typeof(continuation) <> 'object' then
        perform fencepost.refuse(
            'FP033', 'invalid_continuation', 'continuation', 'continuation must be a JSON object, as of one task.'
        );
    end if;
    select given.key into fault
    from jsonb_each(continuation) as given
    where
        case
            when given.key = any(texts) then jsonb_typeof(given.value) not in ('string', 'null')
            when given.key = any(numbers)
                then
                    jsonb_typeof(given.value) not in ('number', 'null')
                    or coalesce(given.value #>> '{}', '0') !~ case
                        when given.key in ('priority', 'max_attempts') then '^-?\d{1,9}$' else '^-?\d{1,15}$'
                    end
            else given.key not in ('labels', 'options')
        end
    order by given.key
    limit 1;
    if found then
        perform fencepost.refuse(
            'FP033', 'invalid_continuation', 'continuation.' || fault,
            format(
                'continuation has no %s of this kind: it takes %s (strings), %s (integers), labels and options (objects).',
                fault, array_to_string(texts, ', '), array_to_string(numbers, ', ')
            )
        );
    end if;
    begin
        perform fencepost.check_tasks(
            array['null'::bytea], array['application/json'], null,
            fencepost.read_milliseconds(array[(continuation ->> 'delay_ms')::bigint]), null,
            array[(continuation ->> 'priority')::int], array[continuation ->> 'node'],
            array[(continuation ->> 'max_attempts')::int],
            fencepost.read_milliseconds(array[(continuation ->> 'run_timeout_ms')::bigint]),
            fencepost.read_milliseconds(array[(continuation ->> 'heartbeat_timeout_ms')::bigint]),
            fencepost.read_milliseconds(array[(continuation ->> 'schedule_to_start_ms')::bigint]),
            array[continuation ->> 'settle'], array[continuation ->> 'concurrency_key'],
            array[nullif(continuation -> 'labels', 'null')], array[nullif(continuation -> 'options', 'null')]
        );
        perform fencepost.make_routes(
            array[namespace], array[continuation ->> 'task_queue'], array[continuation ->> 'task_type'],
            array[continuation ->> 'node']
        );
        perform fencepost.check_declared(
            fencepost.find_routes(
                array[namespace], array[continuation ->> 'task_queue'], array[continuation ->> 'task_type'],
                array[continuation ->> 'node']
            ),
            array[continuation ->> 'task_queue']
        );
    exception
        when others then
            get stacked diagnostics why = message_text, field = column_name, slug = pg_exception_detail;
            if sqlstate not like 'FP%' then
                raise;
            end if;
            perform fencepost.refuse(sqlstate, slug, 'continuation.' || field, 'continuation: ' || why);
    end;
end
$$;

-- Writes tasks as members of a run whose row the caller has locked or just made, and answers their ids in order. A
-- dispatch key that names an existing task is refused, unless that one is a member of this very run.
create function fencepost.stage_members(
    flow fencepost.workflow,
    namespace text,
    first_ordinal int,
    task_queue text[],
    task_type text[],
    payload bytea[],
    content_type text[],
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
    options jsonb[]
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    members int := coalesce(cardinality(payload), 0);
    ids bigint[];
    created boolean[];
    fault record;
    staged bigint;
begin
    select array_agg(put.task_id order by put.ordinal), array_agg(put.created order by put.ordinal)
    into ids, created
    from fencepost.put_tasks(
        task_queue, task_type, payload, content_type, array[namespace], dispatch_key, delay, run_at, priority, node,
        max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options,
        flow.workflow_id, flow.run_id, first_ordinal, case when flow.paused is null then 0 else 1 end::smallint
    ) as put;
    if not coalesce(true = all(created), true) then
        select given.place, given.id into fault
        from unnest(ids, created) with ordinality as given (id, created, place)
        left join lateral (
            select task.run_id from fencepost.task where task.id = given.id limit 1
        ) as known on true
        where not given.created and known.run_id is distinct from flow.run_id
        order by given.place
        limit 1;
        if found then
            perform fencepost.refuse(
                'FP034', 'member_exists', 'dispatch_key',
                format(
                    '%stask %s has this dispatch key already, and is no member of this run.',
                    fencepost.place(fault.place, members), fault.id
                )
            );
        end if;
    end if;
    priority := fencepost.spread(priority, members, 'priority');
    insert into fencepost.workflow_member (run_id, ordinal, task_id, priority)
    select flow.run_id, first_ordinal + given.place - 1, given.id, coalesce(given.priority, 1)
    from unnest(ids, created, priority) with ordinality as given (id, created, priority, place)
    where given.created;
    get diagnostics staged = row_count;
    perform fencepost.tell_run(
        flow.run_id, 'staged', null, jsonb_build_object('members', staged, 'first_ordinal', first_ordinal)
    );
    return coalesce(ids, '{}');
end
$$;

-- Stages a workflow with all its members in the caller's transaction: arrays as in enqueue_many. `mode` all ends
-- when every member has ended and is done only if all are; race is done with the first that is done, and failed when
-- none can be; fail_fast is failed with the first dead letter. The other members are cancelled then. Without members
-- it ends at once. `workflow_key` is the caller's idempotency key: where it names a workflow, that one is answered
-- and nothing is written. `continuation` is a task (a JSON object with the fields of one) that is enqueued when the
-- workflow ends as done or failed, with the members' results as its payload.
create function fencepost.start_workflow(
    task_queue text[] default null,
    task_type text[] default null,
    payload bytea[] default null,
    mode text default 'all',
    name text default '',
    namespace text default 'default',
    continuation jsonb default null,
    workflow_key text default null,
    paused boolean default false,
    ordered_by text default '',
    content_type text[] default null,
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
) returns table (workflow_id bigint, run_id bigint, state text, created boolean, task_ids bigint[])
language plpgsql
as $$
#variable_conflict use_variable
declare
    flow fencepost.workflow;
    ids bigint[] := fencepost.new_ids(2);
    named bigint;
begin
    namespace := coalesce(namespace, 'default');
    if not fencepost.is_name(namespace) then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'namespace', 'namespace must be 1 to 200 characters without control characters.'
        );
    elsif coalesce(name, '') <> '' and not fencepost.is_name(name) then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'name', 'name must be at most 200 characters without control characters.'
        );
    elsif workflow_key is not null and not fencepost.is_name(workflow_key) then
        perform fencepost.refuse(
            'FP001', 'invalid_name', 'workflow_key',
            'workflow_key must be 1 to 200 characters without control characters.'
        );
    elsif coalesce(mode, 'all') not in ('all', 'race', 'fail_fast') then
        perform fencepost.refuse('FP030', 'invalid_mode', 'mode', 'mode must be all, race or fail_fast.');
    end if;
    insert into fencepost.namespace as known (name) values (namespace) on conflict do nothing;
    flow.namespace_id := (select known.namespace_id from fencepost.namespace as known where known.name = namespace);
    if flow.namespace_id is null then
        -- Above READ COMMITTED a namespace that a concurrent transaction made stays out of sight.
        raise exception using
            errcode = 'serialization_failure', message = 'a concurrent transaction made this namespace first';
    end if;
    while workflow_key is not null loop
        insert into fencepost.workflow_key (namespace_id, key, workflow_id)
        values (flow.namespace_id, workflow_key, ids[1])
        on conflict do nothing;
        exit when found;
        named := (
            select held.workflow_id from fencepost.workflow_key as held
            where held.namespace_id = flow.namespace_id and held.key = workflow_key
        );
        return query
        select
            known.workflow_id, known.run_id, known.state, false,
            array(
                select member.task_id from fencepost.workflow_member as member
                where member.run_id = known.run_id order by member.ordinal
            )
        from fencepost.workflow as known
        where known.workflow_id = named and not known.forgotten
        order by known.run_number desc
        limit 1;
        if found then
            return;
        end if;
        -- Retention has forgotten the workflow, and the key or soon the key: it is free.
        update fencepost.workflow_key as held
        set workflow_id = ids[1]
        where
            held.namespace_id = flow.namespace_id and held.key = workflow_key and held.workflow_id = named
            and not exists (
                select from fencepost.workflow as kept where kept.workflow_id = named and not kept.forgotten
            );
        exit when found;
        if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
            raise exception using
                errcode = 'serialization_failure', message = 'a concurrent transaction made this workflow first';
        end if;
    end loop;
    if continuation = 'null' then
        continuation := null;
    elsif continuation is not null then
        perform fencepost.check_continuation(continuation, namespace);
    end if;
    insert into fencepost.workflow as staged (
        run_id, workflow_id, namespace_id, name, mode, continuation, paused
    ) values (
        ids[2], ids[1], flow.namespace_id, coalesce(name, ''), coalesce(mode, 'all'), continuation,
        case when paused then fencepost.order_note(ordered_by, 'staged so') end
    )
    returning staged.* into flow;
    task_ids := fencepost.stage_members(
        flow, namespace, 1, task_queue, task_type, payload, content_type, dispatch_key, delay, run_at, priority, node,
        max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options
    );
    if flow.paused is not null then
        perform fencepost.tell_run(flow.run_id, 'paused', null, flow.paused);
    end if;
    return query
    select flow.workflow_id, flow.run_id, coalesce(fencepost.finish_run(flow.run_id), 'running'), true, task_ids;
end
$$;

-- Who ordered something, when and why.
create function fencepost.order_note(ordered_by text, reason text) returns jsonb
language sql volatile
as $$
select
    jsonb_build_object(
        'by', left(coalesce(ordered_by, ''), 200), 'reason', left(coalesce(reason, ''), 4096),
        'at', fencepost.rfc3339(clock_timestamp())
    )
$$;

-- Adds members to a workflow that is not over, in the caller's transaction, and answers their ids in order. Until the
-- caller commits, whatever else changes this workflow waits.
create function fencepost.add_members(
    workflow bigint,
    task_queue text[],
    task_type text[],
    payload bytea[],
    content_type text[] default null,
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
) returns table (run_id bigint, task_ids bigint[])
language plpgsql
as $$
#variable_conflict use_variable
declare
    flow fencepost.workflow := fencepost.lock_workflow(workflow);
    first_ordinal int;
begin
    if flow.state <> 'running' then
        perform fencepost.refuse_over(flow);
    end if;
    first_ordinal := coalesce(
        (
            select member.ordinal from fencepost.workflow_member as member
            where member.run_id = flow.run_id order by member.ordinal desc limit 1
        ),
        0
    ) + 1;
    return query
    select
        flow.run_id,
        fencepost.stage_members(
            flow, (select known.name from fencepost.namespace as known where known.namespace_id = flow.namespace_id),
            first_ordinal, task_queue, task_type, payload, content_type, dispatch_key, delay, run_at, priority, node,
            max_attempts, run_timeout, heartbeat_timeout, schedule_to_start, settle, concurrency_key, labels, options
        );
end
$$;

-- Marks a workflow as paused: claims look at the mark from this commit on, running members run on. Again is no error.
create function fencepost.pause_workflow(workflow bigint, ordered_by text default '', reason text default '')
returns bigint
language plpgsql
as $$
declare
    flow fencepost.workflow := fencepost.lock_workflow(workflow);
begin
    if flow.state <> 'running' then
        perform fencepost.refuse_over(flow);
    end if;
    if flow.paused is null then
        flow.paused := fencepost.order_note(ordered_by, reason);
        update fencepost.workflow set paused = flow.paused where workflow.run_id = flow.run_id;
        perform fencepost.tell_run(flow.run_id, 'paused', null, flow.paused);
    end if;
    return flow.run_id;
end
$$;

-- Takes the mark away again; the members' hold bits follow.
create function fencepost.resume_workflow(workflow bigint, ordered_by text default '', reason text default '')
returns bigint
language plpgsql
as $$
declare
    flow fencepost.workflow := fencepost.lock_workflow(workflow);
begin
    if flow.state <> 'running' then
        perform fencepost.refuse_over(flow);
    end if;
    if flow.paused is not null then
        update fencepost.workflow set paused = null where workflow.run_id = flow.run_id;
        perform fencepost.tell_run(flow.run_id, 'resumed', null, fencepost.order_note(ordered_by, reason));
    end if;
    return flow.run_id;
end
$$;

-- Ends a workflow as cancelled; its unfinished members are cancelled after it. One that is over stays as it ended.
create function fencepost.cancel_workflow(workflow bigint, ordered_by text default '', reason text default '')
returns bigint
language plpgsql
as $$
declare
    flow fencepost.workflow := fencepost.lock_workflow(workflow);
begin
    if flow.state = 'running' then
        perform fencepost.end_run(flow, 'cancelled', fencepost.order_note(ordered_by, reason));
    end if;
    return flow.run_id;
end
$$;

-- Runs a workflow again under a new run id: `members` unfinished stages anew whatever is not done and keeps the
-- results of the others, all stages everything. A run that goes on ends as cancelled, and so do its members. The
-- copies are new tasks with idempotency keys of their own: what a handler did for the earlier run does not stand for
-- this one.
create function fencepost.rerun_workflow(
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
        insert into fencepost.live (id, route_id, priority, visible_after, start_by, run_timeout_ms, run_id)
        select
            copied.id, copied.route_id, copied.priority, clock_timestamp(),
            clock_timestamp() + copied.schedule_to_start_ms * interval '1 millisecond', copied.run_timeout_ms,
            flow.run_id
        from copied
    )
    select count(*) into staged from copied;
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
        from (select distinct live.route_id from fencepost.live where live.run_id = flow.run_id) as due;
    end if;
    perform fencepost.finish_run(flow.run_id);
    return flow.run_id;
end
$$;

-- A new task takes a member's place, as a redrive of it does, in the transaction that writes the task. Refused where
-- the run is over. Answers the hold bits that the task's row needs.
create function fencepost.rejoin_workflow(run bigint, ordinal int, task bigint) returns smallint
language plpgsql
as $$
#variable_conflict use_variable
declare
    flow fencepost.workflow;
begin
    select locked.* into flow from fencepost.workflow as locked where locked.run_id = run for update;
    if not found then
        perform fencepost.refuse('FP032', 'workflow_not_found', 'run_id', format('there is no run %s.', run));
    elsif flow.state <> 'running' then
        perform fencepost.refuse_over(flow);
    end if;
    update fencepost.workflow_member as member
    set task_id = task
    where member.run_id = run and member.ordinal = rejoin_workflow.ordinal;
    perform fencepost.tell_run(run, 'member_redriven', task, null);
    return case when flow.paused is null then 0 else 1 end;
end
$$;
