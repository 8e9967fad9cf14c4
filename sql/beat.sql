-- One heartbeat: $1 dispatcher, $2 whether it drains. No row: it has been declared dead, which is final.
update fencepost.dispatcher
set
    beat = dispatcher.beat + 1,
    heartbeat_at = statement_timestamp(),
    draining = $2::boolean
where dispatcher.id = $1::bigint and dispatcher.dead_at is null
returning dispatcher.beat
