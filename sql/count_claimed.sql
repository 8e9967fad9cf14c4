-- How far quotas and rates are used: $1 kinds (1 of a namespace, 2 of a route), $2 numbers, $3 where the count starts:
-- a time that no claimed row is older than, by an earlier count (null for none), $4 the clock at that count. Answers
-- what may be claimed (null for any number), what is claimed by all replicas, when the oldest of that was, the rate,
-- its bucket and when that will be full again (null for none), and the clock. One probe a route and replica; without a
-- quota nothing is counted. The start spares the count the entries of rows that are gone and not vacuumed yet; after
-- the clock has stepped back it means nothing.
with asked as materialized (
    select
        given.kind,
        given.number,
        case
            when given.started_at <= statement_timestamp() then given.started_from
        end as started_from,
        bound.max_in_flight as quota,
        bound.rate_tasks,
        bound.rate_period_ms,
        bound.rate_burst
    from unnest($1::int[], $2::int[], $3::timestamptz[], $4::timestamptz[])
            as given (kind, number, started_from, started_at)
    left join lateral (
        select
            namespace.max_in_flight,
            namespace.rate_tasks,
            namespace.rate_period_ms,
            namespace.rate_burst
        from fencepost.namespace
        where namespace.namespace_id = given.number and given.kind = 1
        union all
        select
            route.max_in_flight,
            route.rate_tasks,
            route.rate_period_ms,
            route.rate_burst
        from fencepost.route
        where route.route_id = given.number and given.kind = 2
    ) as bound on true
),

member as materialized (
    select
        asked.*,
        route.route_id
    from asked
    cross join
        lateral (
            select owned.route_id
            from fencepost.route as owned
            where owned.namespace_id = asked.number and asked.kind = 1
            union all
            select asked.number
            where asked.kind = 2
        ) as route
    where asked.quota is not null
),

counted as materialized (
    select
        member.kind,
        member.number,
        sum(mine.tasks)::bigint as claimed,
        min(mine.oldest) as oldest
    from member
    cross join fencepost.dispatcher
    cross join
        lateral (
            select
                count(*) as tasks,
                min(live.claimed_at) as oldest
            from fencepost.live
            where
                live.dispatcher = dispatcher.id
                and live.route_id = member.route_id
                and live.claimed_at >= coalesce(member.started_from, '-infinity')
        ) as mine
    group by member.kind, member.number
)

select
    asked.kind,
    asked.number,
    asked.quota,
    asked.rate_tasks,
    asked.rate_period_ms,
    asked.rate_burst,
    coalesce(counted.claimed, 0) as claimed,
    counted.oldest,
    bucket.tasks as bucket_tasks,
    bucket.period_ms as bucket_period_ms,
    bucket.burst as bucket_burst,
    bucket.full_at,
    statement_timestamp() as at
from asked
left join counted on counted.kind = asked.kind and counted.number = asked.number
left join fencepost.bucket
    on bucket.kind = asked.kind and bucket.number = asked.number and asked.rate_tasks is not null
