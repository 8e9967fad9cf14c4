-- Lists namespaces by name: $1 one of them (null for all), $2 how many, $3 the name that all are behind (null for the
-- first page). A paused one starts nothing at all. Each way to
-- ask is a query of its own, so that a plan that holds for every argument finds one by its index.
with listed as materialized (
    select namespace.*
    from fencepost.namespace
    where namespace.name = $1::text

    union all

    (
        select namespace.*
        from fencepost.namespace
        where $1::text is null and namespace.name > coalesce($3::text, '')
        order by namespace.name
        limit $2::bigint
    )
)

select
    namespace.namespace_id,
    namespace.name,
    namespace.placement::text as placement,
    namespace.require_declared_queues,
    exists(
        select
        from fencepost.pause
        where
            pause.namespace in ('', namespace.name)
            and (pause.task_queue, pause.task_type, pause.node) = ('', '', '')
    ) as paused,
    namespace.weight,
    namespace.max_in_flight,
    namespace.rate_tasks,
    namespace.rate_period_ms,
    namespace.rate_burst,
    bucket.tasks as bucket_tasks,
    bucket.period_ms as bucket_period_ms,
    bucket.burst as bucket_burst,
    bucket.full_at,
    statement_timestamp() as at,
    hook.webhook as dead_letter_webhook,
    coalesce(hook.notify, false) as dead_letter_notify
from listed as namespace
left join fencepost.bucket on bucket.kind = 1 and bucket.number = namespace.namespace_id
left join fencepost.dead_letter_hook as hook on hook.namespace_id = namespace.namespace_id
order by namespace.name
