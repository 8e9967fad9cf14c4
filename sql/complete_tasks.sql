-- Ends tasks as done: $1 ids (unique), $2 epochs, $3 fences, $4 results, $5 their content types, $6 workers. Answers
-- the ids that it ended, as done or, where a cancel was asked for or the task's workflow is over, as cancelled, each
-- with its route, its run where it is a workflow's member and the number of its concurrency key. A row that is gone,
-- is of another epoch or is locked by somebody else is left out: look_again tells which. A success of an earlier
-- delivery in the same epoch counts, so neither owner nor state stand in the guard. Rows are locked by id alone and
-- judged from what the lock returned: only so is the newest version judged.
with locked as materialized (
    select
        given.*,
        mine.epoch as current_epoch,
        mine.route_id,
        mine.attempt,
        mine.claimed_at,
        mine.cancel_requested,
        mine.run_id,
        mine.key_hash
    from unnest(
            $1::bigint[], $2::int[], $3::int[], $4::bytea[], $5::text[], $6::text[]
        ) as given (id, epoch, fence, result, result_type, worker)
    cross join lateral (
        select
            live.epoch,
            live.route_id,
            live.attempt,
            live.claimed_at,
            live.cancel_requested,
            live.run_id,
            live.key_hash
        from fencepost.live
        where live.id = given.id
        for update skip locked
    ) as mine
),

judged as materialized (
    select
        locked.*,
        locked.cancel_requested or coalesce(run.is_over, false) as cancelled,
        coalesce(run.mode = 'race', false) as races
    from locked
    -- The limit keeps it a look for each member.
    left join lateral (
        select
            workflow.mode,
            workflow.state <> 'running' as is_over
        from fencepost.workflow
        where locked.run_id is not null and workflow.run_id = locked.run_id
        limit 1
    ) as run on true
    where locked.epoch = locked.current_epoch
),

removed as (
    delete from fencepost.live
    where live.id = any(array(select judged.id from judged))
),

member_ended as (
    insert into fencepost.workflow_event (run_id, kind, task_id, decides)
    select
        judged.run_id,
        case when judged.cancelled then 'member_cancelled' else 'member_done' end,
        judged.id,
        judged.races and not judged.cancelled
    from judged
    where judged.run_id is not null
),

stored as (
    insert into fencepost.outcome (
        id, ended_at, claimed_at, attempt, epoch, fence, state, worker, result_type, result
    )
    select
        judged.id,
        statement_timestamp(),
        judged.claimed_at,
        judged.attempt,
        judged.epoch,
        judged.fence,
        case when judged.cancelled then 3 else 1 end,
        judged.worker,
        case when not judged.cancelled then judged.result_type end,
        case
            when judged.cancelled then null
            -- what PostgreSQL cannot store as JSON raises here, and the settler ends that one task
            when judged.result_type = 'application/json' then fencepost.normal_json(judged.result)
            else judged.result
        end
    from judged
)

select
    judged.id,
    judged.route_id,
    judged.cancelled,
    judged.run_id,
    judged.key_hash
from judged
