-- Lists the tasks that a task was redriven as, itself included, the first at first: $1 origin, $2 how many at most.
-- Of each that died the letter is there unless somebody has discarded it; the last may be unfinished or have ended
-- otherwise.
with letters as materialized (
    select
        letter.id,
        letter.redriven_as,
        letter.dead_at
    from fencepost.dead_letter as letter
    where letter.origin = $1::bigint
    order by letter.id
    limit $2::bigint
),

tasks as materialized (
    select letters.id as task_id
    from letters
    union
    select letters.redriven_as as task_id
    from letters
    where letters.redriven_as is not null
)

select
    tasks.task_id,
    case
        when unfinished.id is not null then 'unfinished'
        when ended.state = 1 then 'done'
        when ended.state = 2 then 'failed'
        when ended.state = 3 then 'cancelled'
        when died.id is not null then 'failed'
        -- it has left history
        else 'unknown'
    end as state,
    fencepost.rfc3339(died.dead_at) as dead_at
from tasks
left join letters as died on died.id = tasks.task_id
left join lateral (
    select live.id
    from fencepost.live
    where live.id = tasks.task_id
    limit 1
) as unfinished on true
left join lateral (
    select outcome.state
    from fencepost.outcome
    where outcome.id = tasks.task_id
    limit 1
) as ended on true
order by tasks.task_id
