-- What sweeps of unknown outcome have claimed after all: $1 dispatcher, $2 sweep numbers.
select
    live.id,
    live.epoch,
    live.fence
from fencepost.live
where live.dispatcher = $1::bigint and live.sweep = any($2::bigint[])
