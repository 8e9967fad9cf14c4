-- The results of the tasks of a range of ids that ended well: $1 first and $2 last id.
select
    outcome.id,
    outcome.result
from fencepost.outcome
where outcome.id between $1::bigint and $2::bigint and outcome.state = 1 and outcome.result is not null
