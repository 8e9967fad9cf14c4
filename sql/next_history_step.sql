-- The next step of a day that leaves history: $1 milliseconds that it is kept after its last task's end, null for ever.
select
    next.step,
    next.parent,
    next.child,
    next.statement
from fencepost.next_history_step($1::bigint * interval '1 millisecond') as next
