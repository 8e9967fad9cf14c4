-- Lists tasks, newest first: $1 namespace, $2 task queue, $3 task type, $4 state, $5 the id that all answered ones are
-- below, $6 how many tasks to look at, $7 how many to answer, $8 dispatch key (in $1, or in `default`), $9 concurrency
-- key, $10 enqueued at or after, $11 enqueued before, both to a millisecond by the time in the id (but for $5 to $7,
-- null is any). What is unfinished is looked for in `live`, a dispatch key where keys stand, anything else in `task`,
-- where it has no index but the id, so a rare filter would read the whole history: a page ends after $6 of them, and
-- each row (the only one, without a task, on an empty page) says how many were looked at, which was the last, and from
-- when that is. A plan that holds for every argument is good only where each way to look is a query of its own; the
-- others cost nothing then.
with span as materialized (
    select
        -- as many milliseconds as an id has room for
        greatest(0, least(coalesce(fencepost.id_ms($10::timestamptz), 0), 2199023255551)) << 22 as low,
        least($5::bigint, greatest(0, least(fencepost.id_ms($11::timestamptz), 2199023255551)) << 22) as high
),

looked as materialized (
    (
        select
            task.id,
            task.route_id
        from fencepost.task
        where
            $8::text is null
            and coalesce($4::text, 'any') not in ('scheduled', 'ready', 'held', 'running')
            and task.id >= (select span.low from span)
            and task.id < (select span.high from span)
        order by task.id desc
        limit $6::bigint
    )

    union all

    (
        select
            live.id,
            live.route_id
        from fencepost.live
        where
            $8::text is null
            and $4::text in ('scheduled', 'ready', 'held', 'running')
            and live.id >= (select span.low from span)
            and live.id < (select span.high from span)
        order by live.id desc
        limit $6::bigint
    )

    union all

    (
        select
            named.id,
            named.route_id
        from fencepost.namespace
        inner join fencepost.dispatch_key as known
            on known.namespace_id = namespace.namespace_id and known.key = $8::text
        cross join
            lateral (
                select
                    task.id,
                    task.route_id
                from fencepost.task
                where task.id = known.task_id
                limit 1
            ) as named
        where
            namespace.name = coalesce($1::text, 'default')
            and named.id >= (select span.low from span)
            and named.id < (select span.high from span)
    )
),

page as materialized (
    select
        looked.id,
        address.namespace,
        address.task_queue,
        address.task_type,
        nullif(address.node, '') as node,
        stated.state,
        coalesce(unfinished.attempt, ended.attempt, 0) as attempt,
        unfinished.priority,
        fencepost.rfc3339(ended.ended_at) as ended_at,
        ended.error_class
    from looked
    -- The limits keep each a look for one task, however many routes there are.
    cross join
        lateral (
            select
                namespace.name as namespace,
                route.task_queue,
                route.task_type,
                route.node
            from fencepost.route
            inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
            where
                route.route_id = looked.route_id
                and namespace.name = coalesce($1::text, namespace.name)
                and route.task_queue = coalesce($2::text, route.task_queue)
                and route.task_type = coalesce($3::text, route.task_type)
            limit 1
        ) as address
    left join lateral (
        select live.*
        from fencepost.live
        where live.id = looked.id
        limit 1
    ) as unfinished on true
    left join lateral (
        select
            outcome.state,
            outcome.attempt,
            outcome.ended_at,
            outcome.error_class
        from fencepost.outcome
        where outcome.id = looked.id and unfinished.id is null
        limit 1
    ) as ended on true
    left join lateral (
        select task.concurrency_key
        from fencepost.task
        where task.id = looked.id and $9::text is not null
        limit 1
    ) as body on true
    cross join
        lateral (
            select
                case
                    when ended.state = 1 then 'done'
                    when ended.state = 2 then 'failed'
                    when ended.state = 3 then 'cancelled'
                    when unfinished.state = 1 then 'running'
                    else fencepost.waiting_state(unfinished.hold, unfinished.visible_after)
                end as state
        ) as stated
    where
        stated.state = coalesce($4::text, stated.state)
        and ($9::text is null or body.concurrency_key = $9::text)
    order by looked.id desc
    limit $7::bigint
)

select
    page.*,
    fencepost.rfc3339(listed.enqueued_at) as enqueued_at,
    listed.dispatch_key,
    listed.concurrency_key,
    bounds.looked_at,
    bounds.last_id,
    fencepost.rfc3339(oldest.enqueued_at) as looked_back_to
from (
    select
        count(*) as looked_at,
        min(looked.id) as last_id
    from looked
) as bounds
left join page on true
left join lateral (
    select
        task.enqueued_at,
        task.dispatch_key,
        task.concurrency_key
    from fencepost.task
    where task.id = page.id
    limit 1
) as listed on true
left join lateral (
    select task.enqueued_at
    from fencepost.task
    where task.id = bounds.last_id
    limit 1
) as oldest on true
order by page.id desc
