-- What has come and gone of late, a second, over all replicas: $1 milliseconds to look back, $2 pages of ends to read a
-- day of tasks, $3 enqueued tasks to read. One row a route, and one without a route for all of them. Ends stand on the
-- last pages of history, tasks at the end of the ids; where more happened than is read, what was read is taken for all.
with ended as materialized (
    select
        body.route_id,
        recent.state,
        1 / extract(epoch from recent.covers)::float8 as weight,
        extract(epoch from recent.ended_at - recent.claimed_at)::float8 * 1000 as run_ms
    from fencepost.recent_ends($2::int, $1::bigint * interval '1 millisecond') as recent
    cross join lateral (
        select task.route_id
        from fencepost.task
        where task.id = recent.id
        limit 1
    ) as body
),

enqueued as materialized (
    select
        task.route_id,
        task.enqueued_at
    from fencepost.task
    where
        task.id >= (
            select fencepost.id_ms(statement_timestamp() - $1::bigint * interval '1 millisecond') << 22
        )
    order by task.id desc
    limit $3::bigint
),

span as materialized (
    select
        case
            when count(*) < $3::bigint then $1::bigint / 1000.0
            else greatest(extract(epoch from statement_timestamp() - min(enqueued.enqueued_at)), 0.05)
        end::float8 as seconds
    from enqueued
),

happened as (
    select
        ended.route_id,
        ended.state,
        ended.weight,
        ended.run_ms
    from ended

    union all

    select
        enqueued.route_id,
        0 as state,
        1 / span.seconds as weight,
        null as run_ms
    from enqueued
    cross join span
)

select
    happened.route_id,
    coalesce(sum(happened.weight) filter (where happened.state = 0), 0) as enqueued,
    coalesce(sum(happened.weight) filter (where happened.state = 1), 0) as done,
    coalesce(sum(happened.weight) filter (where happened.state = 2), 0) as failed,
    coalesce(sum(happened.weight) filter (where happened.state = 3), 0) as cancelled,
    percentile_cont(0.5) within group (order by happened.run_ms) as run_p50_ms,
    percentile_cont(0.95) within group (order by happened.run_ms) as run_p95_ms
from happened
group by grouping sets ((happened.route_id), ())
