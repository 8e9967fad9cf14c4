-- What a registering worker meets: $1 the namespaces that it names (made where they are new), $2 its identity.
-- Answers the placement of each namespace, and what an operator ordered for the worker.
with made as (
    insert into fencepost.namespace (name)
    select named.name
    from unnest($1::text[]) as named (name)
    where not exists (select from fencepost.namespace as known where known.name = named.name)
    order by named.name
    on conflict do nothing
    returning namespace.name, namespace.placement
)

select
    met.name,
    met.placement::text as placement,
    worker_order.action
from (
    select
        namespace.name,
        namespace.placement
    from fencepost.namespace
    where namespace.name = any($1::text[])

    union all

    select
        made.name,
        made.placement
    from made

    union all

    -- one row that is always there, for the order
    select
        null as name,
        null as placement
) as met
left join fencepost.worker_order on worker_order.identity = $2::text
