-- Declares replicas dead: $1 ids, $2 the beat at which each has stood still. One more beat in time saves it.
update fencepost.dispatcher
set
    dead_at = statement_timestamp(),
    sleeping = false
from unnest($1::bigint[], $2::bigint[]) as silent (id, beat)
where
    dispatcher.id = silent.id
    and dispatcher.beat = silent.beat
    and dispatcher.dead_at is null
returning dispatcher.id
