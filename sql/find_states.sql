-- Where the tasks of a range of ids stand: $1 first and $2 last id. The state is 0 waiting, 1 claimed, 2 done,
-- 3 failed, 4 cancelled. One statement, so one snapshot: an id that it answers twice, or not at all, is a defect.
select
    live.id,
    live.state,
    live.attempt
from fencepost.live
where live.id between $1::bigint and $2::bigint
union all
select
    outcome.id,
    (outcome.state + 1)::smallint as state,
    outcome.attempt
from fencepost.outcome
where outcome.id between $1::bigint and $2::bigint
