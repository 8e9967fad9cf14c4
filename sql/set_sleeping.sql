-- Says whether a replica sleeps, so that producers know whether a notification is worth its lock, and whether a quota
-- holds it back, so that those who free one know: $1 dispatcher, $2 sleeping, $3 held back.
update fencepost.dispatcher
set
    sleeping = $2::boolean,
    held_back = $3::boolean
where
    dispatcher.id = $1::bigint
    and dispatcher.dead_at is null
    and (dispatcher.sleeping, dispatcher.held_back) is distinct from ($2::boolean, $3::boolean)
