-- Ends tasks as done: $1 ids (unique), $2 epochs, $3 fences, $4 results, $5 their content types, $6 workers.
-- Answers the ids that it ended, as done or, where a cancel was asked for, as cancelled. A row that is gone, is
-- of another epoch or is locked by somebody else is left out: look_again tells which.
-- A success of an earlier delivery in the same epoch counts, so neither owner nor state stand in the guard.
-- Rows are locked by id alone and judged from what the lock returned: only so is the newest version judged.
with locked as materialized (
    select
        given.*,
        mine.epoch as current_epoch,
        mine.attempt,
        mine.claimed_at,
        mine.cancel_requested
    from unnest(
            $1::bigint[], $2::int[], $3::int[], $4::bytea[], $5::text[], $6::text[]
        ) as given (id, epoch, fence, result, result_type, worker)
    cross join lateral (
        select
            live.epoch,
            live.attempt,
            live.claimed_at,
            live.cancel_requested
        from fencepost.live
        where live.id = given.id
        for update skip locked
    ) as mine
),

judged as materialized (
    select locked.*
    from locked
    where locked.epoch = locked.current_epoch
),

removed as (
    delete from fencepost.live
    where live.id = any(array(select judged.id from judged))
)

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
    case when judged.cancel_requested then 3 else 1 end,
    judged.worker,
    case when not judged.cancel_requested then judged.result_type end,
    case
        when judged.cancel_requested then null
        -- what PostgreSQL cannot store as JSON raises here, and the settler ends that one task
        when judged.result_type = 'application/json' then fencepost.normal_json(judged.result)
        else judged.result
    end
from judged
returning outcome.id
