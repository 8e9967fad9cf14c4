-- Takes tokens from buckets: $1 kinds (1 of a namespace, 2 of a route), $2 numbers, in order; of the rate of each $3
-- tasks, $4 milliseconds of the period and $5 burst; $6 when it will be full again. In the transaction that holds them
-- by lock_quotas and has read them by count_claimed, so that nobody waits for a bucket, and a replica that dies before
-- its commit has taken nothing.
insert into fencepost.bucket (kind, number, tasks, period_ms, burst, full_at)
select
    spent.kind,
    spent.number,
    spent.tasks,
    spent.period_ms,
    spent.burst,
    spent.full_at
from unnest($1::int[], $2::int[], $3::int[], $4::int[], $5::int[], $6::timestamptz[])
        as spent (kind, number, tasks, period_ms, burst, full_at)
on conflict on constraint bucket_pkey do update
    set
        tasks = excluded.tasks,
        period_ms = excluded.period_ms,
        burst = excluded.burst,
        full_at = excluded.full_at
