-- Where a task is in its life, for those who ask why it does not run: $1 id.
select
    task.route_id,
    case outcome.state when 1 then 'done' when 2 then 'failed' when 3 then 'cancelled' end as ended,
    outcome.ended_at,
    outcome.error_class,
    live.state = 1 as claimed,
    -- a paused workflow holds its members before their bits are set
    (live.hold | coalesce(run.paused_bit, 0))::smallint as hold,
    live.visible_after,
    live.visible_after > statement_timestamp() as waits,
    -- some of those that have its concurrency key, and the dead letters that stop it
    array(
        select other.id
        from fencepost.live as other
        where other.key_hash = live.key_hash and other.hold & 2 = 0 and other.id <> live.id
        limit 3
    ) as key_tasks,
    array(
        select stop.letter_id
        from fencepost.stopped_key as stop
        where stop.key_hash = live.key_hash
        limit 3
    ) as key_letters,
    -- when its token comes, where it is the next one of its concurrency key and that has room
    case when token.comes_at > statement_timestamp() then token.comes_at end as key_token_at,
    route.key_rate_tasks,
    route.key_rate_period_ms,
    route.key_rate_burst,
    live.claimed_at,
    live.cancel_requested,
    live.dispatcher,
    coalesce(dispatcher.name, '') as replica,
    unserved.since as unserved_since,
    node.seen_at as node_seen
from fencepost.task
left join fencepost.live on live.id = $1::bigint
left join fencepost.outcome on outcome.id = $1::bigint
left join lateral (
    select 1 as paused_bit
    from fencepost.workflow
    where workflow.run_id = live.run_id and workflow.paused is not null
    limit 1
) as run on true
left join fencepost.dispatcher on dispatcher.id = live.dispatcher
left join fencepost.route on route.route_id = task.route_id
left join lateral (
    select rate.full_at + rate.token - rate.span as comes_at
    from fencepost.key_rate(live.route_id, live.key_hash, statement_timestamp()) as rate
    where
        live.hold & 2 <> 0
        and (
            select stop.letter_id
            from fencepost.stopped_key as stop
            where stop.key_hash = live.key_hash
            limit 1
        ) is null
        and live.id = (
            select first.id
            from fencepost.live as first
            where first.key_hash = live.key_hash and first.hold & 2 <> 0
            order by first.visible_after, first.id
            limit 1
        )
        and route.key_limit > (
            select count(*)
            from (
                select 1
                from fencepost.live as other
                where other.key_hash = live.key_hash and other.hold & 2 = 0
                limit route.key_limit
            ) as let_go
        )
) as token on true
left join fencepost.node on node.name = route.node
left join fencepost.unserved on unserved.route_id = task.route_id
where task.id = $1::bigint
