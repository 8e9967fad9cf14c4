-- Lists namespaces by name: $1 one of them (null for all), $2 how many. A paused one starts nothing at all.
select
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
    hook.webhook as dead_letter_webhook,
    coalesce(hook.notify, false) as dead_letter_notify
from fencepost.namespace
left join fencepost.dead_letter_hook as hook on hook.namespace_id = namespace.namespace_id
where $1::text is null or namespace.name = $1::text
order by namespace.name
limit $2::bigint
