-- Says whether a replica sleeps, so that producers know whether a notification is worth its lock:
-- $1 dispatcher, $2 sleeping.
update fencepost.dispatcher
set sleeping = $2::boolean
where
    dispatcher.id = $1::bigint
    and dispatcher.dead_at is null
    and dispatcher.sleeping is distinct from $2::boolean
