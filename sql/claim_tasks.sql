-- Claims due tasks for one replica: at most $5 a lane and $9[share] a share of free slots, best places first. $1
-- dispatcher, $2 sweep number; per lane: $3 route, $4 priority, $5 limit, $6 and $7 the low-water mark (visible_after,
-- id), $8 share from 1; $9 rows of each share; $10 milliseconds that a deadline allows beyond the run timeout, $11 run
-- timeout of tasks without one of their own (0 for none); $12 milliseconds of waiting that count as much as one
-- priority (ageing); per lane: $13 and $14 the quotas of its namespace and route that its limit heeds, null for none,
-- $15 and $16 whether it heeds their rates. A lane whose quotas are others by now, or that has a rate which its limit
-- does not heed, gives nothing: its locks may not be held. A dead dispatcher claims nothing, and lanes of paused routes
-- give nothing. Rows that are locked and then cut stay ready. Only the update's returning says what was taken. state
-- and hold are literals, so that every plan can use the partial index.
with me as materialized (
    select dispatcher.id
    from fencepost.dispatcher
    where dispatcher.id = $1::bigint and dispatcher.dead_at is null
),

-- While nothing is paused, the look at the pauses is all that they cost.
paused as materialized (
    select asked.route_id
    from unnest($3::int[]) as asked (route_id)
    cross join
        lateral (
            select paused_route.route_id
            from fencepost.paused_route
            where paused_route.route_id = asked.route_id
            limit 1
        ) as bound
    where exists (select from fencepost.pause)
),

lane as materialized (
    select asked.*
    from me
    cross join
        unnest(
            $3::int[], $4::smallint[], $5::int[], $6::timestamptz[], $7::bigint[], $8::int[], $13::int[], $14::int[],
            $15::boolean[], $16::boolean[]
        ) as asked (
            route_id, priority, quantity, low_at, low_id, share, namespace_quota, route_quota,
            namespace_rated, route_rated
        )
    inner join fencepost.route on route.route_id = asked.route_id
    inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
    where
        route.max_in_flight is not distinct from asked.route_quota
        and namespace.max_in_flight is not distinct from asked.namespace_quota
        and (asked.namespace_rated or namespace.rate_tasks is null)
        and (asked.route_rated or route.rate_tasks is null)
        and asked.route_id <> all(array(select paused.route_id from paused))
),

picked as materialized (
    select
        due.tid,
        lane.share,
        row_number() over (
            partition by lane.share
            order by due.visible_after + lane.priority * $12::bigint * interval '1 millisecond', lane.priority, due.id
        ) as place
    from lane
    cross join lateral (
        select
            live.ctid as tid,
            live.visible_after,
            live.id
        from fencepost.live
        where
            live.state = 0
            and live.hold = 0
            and live.route_id = lane.route_id
            and live.priority = lane.priority
            and live.visible_after <= statement_timestamp()
            and (live.visible_after, live.id) > (lane.low_at, lane.low_id)
            -- A workflow's member needs a run that goes on and is not paused, also while the hold bits are still
            -- being set. A scalar subquery, which no plan can turn into a walk over all workflows.
            and (
                live.run_id is null
                or (
                    select workflow.state = 'running' and workflow.paused is null
                    from fencepost.workflow
                    where workflow.run_id = live.run_id
                )
            )
        order by live.visible_after, live.id
        limit lane.quantity
        for update skip locked
    ) as due
)

update fencepost.live
set
    state = 1,
    fence = live.fence + 1,
    dispatcher = $1::bigint,
    sweep = $2::bigint,
    claimed_at = statement_timestamp(),
    deadline = case
        when coalesce(live.run_timeout_ms, $11::bigint) > 0
            then
                statement_timestamp()
                + (coalesce(live.run_timeout_ms, $11::bigint) + $10::bigint) * interval '1 millisecond'
    end
where
    live.ctid = any(array(
        select picked.tid
        from picked
        where picked.place <= ($9::int[])[picked.share]
    ))
    and live.state = 0
returning
    live.id,
    live.route_id,
    live.priority,
    live.visible_after,
    live.attempt,
    live.losses,
    live.epoch,
    live.fence,
    statement_timestamp() as claimed_at
