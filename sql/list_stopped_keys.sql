-- Dead letters that stop their concurrency keys, the longest first: $1 namespace (null for any), $2 how many,
-- $3 and $4 time and letter that all are behind (null for the first page).
select
    stop.letter_id,
    stop.stopped_at,
    namespace.name as namespace,
    route.task_queue,
    route.task_type,
    nullif(route.node, '') as node,
    letter.concurrency_key,
    letter.cause,
    letter.error_class
from fencepost.stopped_key as stop
-- The limits keep each a look for one key, however many letters there are.
cross join
    lateral (
        select dead_letter.*
        from fencepost.dead_letter
        where dead_letter.id = stop.letter_id
        limit 1
    ) as letter
cross join
    lateral (
        select found.*
        from fencepost.route as found
        where found.route_id = letter.route_id
        limit 1
    ) as route
cross join
    lateral (
        select found.*
        from fencepost.namespace as found
        where found.namespace_id = route.namespace_id
        limit 1
    ) as namespace
where
    namespace.name = coalesce($1::text, namespace.name)
    and ($3::timestamptz is null or (stop.stopped_at, stop.letter_id) > ($3::timestamptz, $4::bigint))
order by stop.stopped_at, stop.letter_id
limit $2::bigint
