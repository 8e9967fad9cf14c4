-- Members of a run with the state of the task that stands for each: $1 run, $2 the ordinal that all are above, $3 how
-- many.
select
    member.ordinal,
    member.task_id,
    case
        when ended.state = 1 then 'done'
        when ended.state = 2 then 'failed'
        when ended.state = 3 then 'cancelled'
        when unfinished.state = 1 then 'running'
        when unfinished.id is not null then fencepost.waiting_state(unfinished.hold, unfinished.visible_after)
        -- its outcome has left history
        else 'ended'
    end as state,
    coalesce(unfinished.attempt, ended.attempt, 0) as attempt,
    ended.error_class
from (
    select
        workflow_member.ordinal,
        workflow_member.task_id
    from fencepost.workflow_member
    where workflow_member.run_id = $1::bigint and workflow_member.ordinal > $2::int
    order by workflow_member.ordinal
    limit $3::bigint
) as member
left join lateral (
    select live.*
    from fencepost.live
    where live.id = member.task_id
    limit 1
) as unfinished on true
left join lateral (
    select
        outcome.state,
        outcome.attempt,
        outcome.error_class
    from fencepost.outcome
    where outcome.id = member.task_id
    limit 1
) as ended on true
order by member.ordinal
