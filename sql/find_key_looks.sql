-- Concurrency keys that somebody is to look at: the first $1 rows after the time $2 and the number $3 (null for the
-- beginning), and in how many milliseconds each is due. Who goes on after a full page is kept from none by rows that
-- stay.
with looks as materialized (
    select
        key_look.look_id,
        key_look.key_hash,
        key_look.due_at
    from fencepost.key_look
    where
        (key_look.due_at, key_look.look_id)
        > (coalesce($2::timestamptz, '-infinity'::timestamptz), coalesce($3::bigint, 0))
    order by key_look.due_at, key_look.look_id
    limit $1::int
)

select
    looks.look_id,
    looks.key_hash,
    looks.due_at,
    ceil(extract(epoch from looks.due_at - statement_timestamp()) * 1000)::bigint as due_in_ms
from looks
order by looks.due_at, looks.look_id
