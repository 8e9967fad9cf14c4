-- Concurrency keys that somebody is to look at: the first $1 that are due, and when the first one that is not due yet
-- will be, in milliseconds.
with looks as materialized (
    select
        key_look.look_id,
        key_look.key_hash,
        key_look.due_at
    from fencepost.key_look
    order by key_look.due_at, key_look.look_id
    limit $1::int
)

select
    looks.look_id,
    looks.key_hash,
    ceil(extract(epoch from looks.due_at - statement_timestamp()) * 1000)::bigint as due_in_ms
from looks
order by looks.due_at, looks.look_id
