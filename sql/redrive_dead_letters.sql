-- Redrives dead letters: $1 ids, $2 whether also those that their owner has judged, $3 whether to the route without
-- the node. Answers the new task of each, or why there is none.
select
    redriven.letter_id,
    redriven.task_id,
    redriven.refused
from fencepost.redrive_dead_letters(
        letters => $1::bigint[],
        forced => $2::boolean,
        clear_pin => $3::boolean
    ) as redriven
order by redriven.letter_id
