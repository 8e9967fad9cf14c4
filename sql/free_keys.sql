-- Lets go of concurrency keys what may go now: $1 the keys' numbers, $2 the rows of key_look that this answers. Answers
-- for each key whether to come again soon, how many it let go, the routes that have a ready row more, and when the
-- token comes that its next task waits for, in milliseconds too.
select
    freed.key_hash,
    freed.again,
    freed.tasks,
    freed.routes,
    freed.token_at,
    ceil(extract(epoch from freed.token_at - clock_timestamp()) * 1000)::bigint as token_in_ms
from fencepost.free_keys($1::bigint[], $2::bigint[]) as freed
