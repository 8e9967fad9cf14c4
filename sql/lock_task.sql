-- Waits for one task's row: $1 id. The statement that follows in the same transaction sees its newest version.
select live.id
from fencepost.live
where live.id = $1::bigint
for update
