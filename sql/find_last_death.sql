-- When a replica was last declared dead or said goodbye, in microseconds since 1970; null where none is known.
select (extract(epoch from max(dispatcher.dead_at)) * 1000000)::bigint as died_at
from fencepost.dispatcher
