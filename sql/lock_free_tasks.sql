-- Locks those rows of unfinished tasks that nobody else has locked, in order: $1 ids. Who waits for the others does so
-- one by one, holding none of these.
select live.id
from fencepost.live
where live.id = any($1::bigint[])
order by live.id
for update skip locked
