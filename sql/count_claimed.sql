-- How far quotas are used: $1 kinds (1 of a namespace, 2 of a route), $2 numbers, $3 where the count starts: a time
-- that no claimed row is older than, by an earlier count (null for none), $4 the clock at that count. Answers what may
-- be claimed (null for any number), what is claimed by all replicas, when the oldest of that was, and the clock. One
-- probe a route and replica. The start spares the count the entries of rows that are gone and not vacuumed yet; after
-- the clock has stepped back it means nothing.
with asked as materialized (
    select
        given.kind,
        given.number,
        case
            when given.started_at <= statement_timestamp() then given.started_from
        end as started_from
    from unnest($1::int[], $2::int[], $3::timestamptz[], $4::timestamptz[])
            as given (kind, number, started_from, started_at)
),

member as materialized (
    select
        asked.*,
        route.route_id
    from asked
    cross join lateral (
        select owned.route_id
        from fencepost.route as owned
        where owned.namespace_id = asked.number and asked.kind = 1
        union all
        select asked.number
        where asked.kind = 2
    ) as route
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
    case asked.kind
        when 1
            then (select namespace.max_in_flight from fencepost.namespace where namespace.namespace_id = asked.number)
        else (select route.max_in_flight from fencepost.route where route.route_id = asked.number)
    end as quota,
    coalesce(counted.claimed, 0) as claimed,
    counted.oldest,
    statement_timestamp() as at
from asked
left join counted on counted.kind = asked.kind and counted.number = asked.number
