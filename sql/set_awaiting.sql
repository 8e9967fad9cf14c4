-- Says whether somebody waits at a replica for the end of a task: $1 dispatcher, $2 awaiting. The others are told when
-- that begins, and read it with their beats.
with turned as (
    update fencepost.dispatcher
    set awaiting = $2::boolean
    where
        dispatcher.id = $1::bigint
        and dispatcher.dead_at is null
        and dispatcher.awaiting is distinct from $2::boolean
    returning dispatcher.awaiting
)

select pg_notify('fencepost', 'awaiting')
from turned
where turned.awaiting
