-- A replica's own last word: $1 dispatcher. What it leaves claimed is put back at once, without a loss.
update fencepost.dispatcher
set
    dead_at = statement_timestamp(),
    sleeping = false,
    draining = true
where dispatcher.id = $1::bigint and dispatcher.dead_at is null
