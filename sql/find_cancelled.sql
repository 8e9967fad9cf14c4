-- Running tasks of one replica that somebody asked to cancel: $1 dispatcher.
select
    live.id,
    live.epoch,
    live.fence
from fencepost.live
where live.dispatcher = $1::bigint and live.cancel_requested
