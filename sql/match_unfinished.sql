-- Unfinished tasks that match a filter, in order: $1 namespace, $2 task queue, $3 task type, $4 node, $5 state
-- (scheduled, ready, held, running), $6 and $7 labels by name and value, $8 enqueued at or after, $9 enqueued
-- before (each null for any), $10 the id that all answered ones are above, $11 how many rows to look at. A look
-- walks the primary key, so that every page is bounded; each answered row (the only one, without a task, where
-- nothing matches) says how many were looked at and which was the last. Bodies are read only where the filter
-- asks for what only they have.
with looked as materialized (
    select
        live.id,
        live.route_id,
        live.state,
        live.hold,
        live.visible_after
    from fencepost.live
    where live.id > $10::bigint
    order by live.id
    limit $11::bigint
),

matching as materialized (
    select looked.id
    from looked
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
        select
            task.labels,
            task.enqueued_at
        from fencepost.task
        where
            task.id = looked.id
            and ($6::text[] is not null or $8::timestamptz is not null or $9::timestamptz is not null)
        limit 1
    ) as body on true
    where
        address.namespace = coalesce($1::text, address.namespace)
        and address.task_queue = coalesce($2::text, address.task_queue)
        and address.task_type = coalesce($3::text, address.task_type)
        and address.node = coalesce($4::text, address.node)
        and (
            $5::text is null
            or $5::text = case
                when looked.state = 1 then 'running'
                else fencepost.waiting_state(looked.hold, looked.visible_after)
            end
        )
        and ($8::timestamptz is null or body.enqueued_at >= $8::timestamptz)
        and ($9::timestamptz is null or body.enqueued_at < $9::timestamptz)
        and (
            $6::text[] is null
            or not exists (
                select
                from unnest($6::text[], $7::text[]) as wanted (name, content)
                where (body.labels ->> wanted.name) is distinct from wanted.content
            )
        )
)

select
    matching.id,
    bounds.looked_at,
    bounds.last_id
from (
    select
        count(*) as looked_at,
        max(looked.id) as last_id
    from looked
) as bounds
left join matching on true
order by matching.id
