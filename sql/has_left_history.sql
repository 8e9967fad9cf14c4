-- Whether tasks as old as this id have left history: $1 id. Ids below the floor are of days that are gone, but for
-- those that an unfinished task has kept.
select ($1::bigint >> 22) < horizon.floor_ms and $1::bigint > 0 as has_left
from fencepost.horizon
