-- Lists namespaces by name: $1 one of them (null for all), $2 how many.
select
    namespace.name,
    namespace.placement::text as placement,
    namespace.require_declared_queues,
    namespace.paused is not null as paused,
    namespace.weight,
    namespace.max_in_flight,
    hook.webhook as dead_letter_webhook,
    coalesce(hook.notify, false) as dead_letter_notify
from fencepost.namespace
left join fencepost.dead_letter_hook as hook on hook.namespace_id = namespace.namespace_id
where $1::text is null or namespace.name = $1::text
order by namespace.name
limit $2::bigint
