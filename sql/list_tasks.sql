-- Lists tasks, newest first: $1 namespace, $2 task queue, $3 task type, $4 state (each null for any), $5 the id
-- that all answered ones are below, $6 how many tasks to look at, $7 how many to answer. Tasks have no index but
-- their id, so a rare filter would read the whole history: a page ends after $6 of them, and each row (the only
-- one, without a task, on an empty page) says how many were looked at and which was the last.
with looked as materialized (
    select
        task.id,
        task.route_id,
        task.enqueued_at
    from fencepost.task
    where task.id < $5::bigint
    order by task.id desc
    limit $6::bigint
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
        fencepost.rfc3339(looked.enqueued_at) as enqueued_at,
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
            where route.route_id = looked.route_id
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
        where outcome.id = looked.id
        limit 1
    ) as ended on true
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
        address.namespace = coalesce($1::text, address.namespace)
        and address.task_queue = coalesce($2::text, address.task_queue)
        and address.task_type = coalesce($3::text, address.task_type)
        and stated.state = coalesce($4::text, stated.state)
    order by looked.id desc
    limit $7::bigint
)

select
    page.*,
    bounds.looked_at,
    bounds.last_id
from (
    select
        count(*) as looked_at,
        min(looked.id) as last_id
    from looked
) as bounds
left join page on true
order by page.id desc
