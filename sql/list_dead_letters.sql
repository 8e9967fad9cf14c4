-- Lists dead letters that a filter takes, the last to die first: $1 filter (the bytes of a JSON object), $2 time and
-- $3 id that all answered ones are below, $4 how many letters to look at, $5 how many to answer. A rare filter would
-- read them all: a page ends after $4 of them, and each row (the only one, without a letter, on an empty page) says
-- how many were looked at and which was the last.
with rule as materialized (
    select
        fencepost.read_letter_filter(
            (fencepost.read_objects(array[$1::bytea], 'FP040', 'invalid_filter', 'filter'))[1]
        ) as given
),

looked as materialized (
    select
        letter.id,
        letter.dead_at,
        fencepost.letter_fits(letter, rule.given) as fits
    from rule
    cross join
        lateral (
            select dead_letter.*
            from fencepost.dead_letter
            where (dead_letter.dead_at, dead_letter.id) < ($2::timestamptz, $3::bigint)
            order by dead_letter.dead_at desc, dead_letter.id desc
            limit $4::bigint
        ) as letter
),

page as materialized (
    select
        looked.id,
        looked.dead_at
    from looked
    where looked.fits
    order by looked.dead_at desc, looked.id desc
    limit $5::bigint
)

select
    page.id,
    page.dead_at as died,
    address.namespace,
    address.task_queue,
    address.task_type,
    nullif(address.node, '') as node,
    letter.cause,
    letter.error_class,
    letter.attempt,
    letter.losses,
    letter.judged,
    letter.redriven_as,
    fencepost.rfc3339(letter.enqueued_at) as enqueued_at,
    fencepost.rfc3339(letter.dead_at) as dead_at,
    bounds.looked_at,
    bounds.last_died,
    bounds.last_id
from (
    select
        count(*) as looked_at,
        min(looked.dead_at) as last_died,
        (array_agg(looked.id order by looked.dead_at, looked.id))[1] as last_id
    from looked
) as bounds
left join page on true
left join lateral (
    select dead_letter.*
    from fencepost.dead_letter
    where dead_letter.id = page.id
    limit 1
) as letter on true
left join lateral (
    select
        namespace.name as namespace,
        route.task_queue,
        route.task_type,
        route.node
    from fencepost.route
    inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
    where route.route_id = letter.route_id
    limit 1
) as address on true
order by page.dead_at desc, page.id desc
