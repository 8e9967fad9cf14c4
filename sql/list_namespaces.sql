-- Lists namespaces by name: $1 one of them (null for all), $2 how many.
select
    namespace.name,
    namespace.placement::text as placement,
    namespace.require_declared_queues,
    namespace.paused is not null as paused,
    namespace.weight,
    namespace.max_in_flight
from fencepost.namespace
where $1::text is null or namespace.name = $1::text
order by namespace.name
limit $2::bigint
