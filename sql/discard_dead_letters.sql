-- Discards dead letters: $1 ids. Answers those that were there.
select discarded.id
from fencepost.discard_dead_letters($1::bigint[]) as discarded (id)
