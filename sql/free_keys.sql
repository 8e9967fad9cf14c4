-- Lets go of concurrency keys what may go now: $1 the keys' numbers, $2 the rows of key_look that this answers. Answers
-- for each key whether to come again soon, and the routes that have a ready row more.
select
    freed.key_hash,
    freed.again,
    freed.routes
from fencepost.free_keys($1::bigint[], $2::bigint[]) as freed
