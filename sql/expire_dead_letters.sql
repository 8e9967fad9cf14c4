-- Forgets dead letters: $1 milliseconds that they are kept, $2 how many at most. One that somebody works on is left
-- for the next time. A key that one of them stops goes on.
with expired as materialized (
    select dead_letter.id
    from fencepost.dead_letter
    where dead_letter.dead_at < statement_timestamp() - $1::bigint * interval '1 millisecond'
    order by dead_letter.dead_at, dead_letter.id
    limit $2::int
    for update skip locked
),

gone as (
    delete from fencepost.dead_letter
    where dead_letter.id = any(array(select expired.id from expired))
    returning dead_letter.id
)

select
    gone.id,
    stops.lifted
from gone
cross join (select fencepost.lift_stops(array(select expired.id from expired)) as lifted) as stops
