-- Cancels tasks: $1 ids (unique), $2 grace in milliseconds that a running one gets, $3 reason, $4 0 for waiting ones
-- only, 1 for running ones only, null for both. A waiting one ends at once; a running one is marked, keeps its slot,
-- and ends with its next report or when the grace is over. Answers id, owner of a running one, run of a workflow's
-- member that ended here, route, and state: cancelled, requested, passed_over (it is not of the state that is meant),
-- or what the task had ended as (`over` tells the difference); a task that never was is left out.
with locked as materialized (
    select
        live.id,
        live.route_id,
        live.state,
        live.attempt,
        live.dispatcher,
        live.run_id,
        live.key_hash
    from fencepost.live
    where live.id = any($1::bigint[])
    order by live.id
    for update
),

meant as materialized (
    select locked.*
    from locked
    where locked.state = coalesce($4::smallint, locked.state)
),

removed as (
    delete from fencepost.live
    where live.id = any(array(select meant.id from meant where meant.state = 0))
),

stored as (
    insert into fencepost.outcome (id, ended_at, attempt, state, error_class, error_message)
    select
        meant.id,
        statement_timestamp(),
        meant.attempt,
        3,
        'cancelled',
        left($3::text, 4096)
    from meant
    where meant.state = 0
),

member_ended as (
    insert into fencepost.workflow_event (run_id, kind, task_id)
    select
        meant.run_id,
        'member_cancelled',
        meant.id
    from meant
    where meant.run_id is not null and meant.state = 0
),

-- Their concurrency keys have room now, or, behind one that waited for its key, a task that may go where it might not.
looks as (
    insert into fencepost.key_look (key_hash, due_at)
    select distinct
        meant.key_hash,
        statement_timestamp()
    from meant
    where meant.state = 0 and meant.key_hash is not null
),

marked as (
    update fencepost.live
    set
        cancel_requested = true,
        deadline = least(live.deadline, statement_timestamp() + $2::bigint * interval '1 millisecond')
    where live.id = any(array(select meant.id from meant where meant.state = 1))
)

select
    asked.id,
    locked.route_id,
    locked.dispatcher,
    case when locked.state = 0 and coalesce($4::smallint, 0) = 0 then locked.run_id end as run_id,
    case
        when locked.state <> coalesce($4::smallint, locked.state) then 'passed_over'
        when locked.state = 0 then 'cancelled'
        when locked.state = 1 then 'requested'
        when ended.state = 1 then 'done'
        when ended.state = 2 then 'failed'
        when ended.state = 3 then 'cancelled'
        -- ended while this statement waited for its row
        else 'ended'
    end as state,
    locked.id is null as over
from unnest($1::bigint[]) as asked (id)
left join locked on locked.id = asked.id
-- The limits keep each id a look into its own partition, whatever the planner thinks of the others.
left join lateral (
    select outcome.state
    from fencepost.outcome
    where outcome.id = asked.id
    limit 1
) as ended on true
left join lateral (
    select task.id
    from fencepost.task
    where task.id = asked.id
    limit 1
) as known on true
where locked.id is not null or known.id is not null
