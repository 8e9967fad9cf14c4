-- When the tasks of a range of ids were enqueued and ended, in microseconds since 1970: $1 first and $2 last id.
select
    task.id,
    (extract(epoch from task.enqueued_at) * 1000000)::bigint as enqueued_us,
    (
        select (extract(epoch from outcome.ended_at) * 1000000)::bigint
        from fencepost.outcome
        where outcome.id = task.id and outcome.id between $1::bigint and $2::bigint
    ) as ended_us
from fencepost.task
where task.id between $1::bigint and $2::bigint
