-- Completion from inside a handler's own transaction, and the view of all tasks for people.

set local lock_timeout = '5s';

-- Ends the task as done, together with the handler's own writes, when the delivery that the token names still
-- counts: an unfinished task of the same epoch that nobody asked to cancel. A repeat of a completion that was
-- recorded is no error. The row stays locked until the caller commits, which delays this one task only.
create function fencepost.complete_bytes(token text, result bytea, content_type text) returns void
language plpgsql
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
end
$$;

-- As complete_bytes, with a JSON result.
create function fencepost.complete(token text, result jsonb default null) returns void
language plpgsql
as $$
begin
    perform fencepost.complete_bytes(token, convert_to(result::text, 'UTF8'), 'application/json');
end
$$;

-- One row a task, its state spelled out.
create view fencepost.tasks as
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
        when live.hold <> 0 then 'held'
        when live.visible_after > statement_timestamp() then 'scheduled'
        when live.id is not null then 'ready'
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
    task.ordinal
from fencepost.task
inner join fencepost.route on route.route_id = task.route_id
inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
left join fencepost.live on live.id = task.id
left join fencepost.outcome on outcome.id = task.id;
