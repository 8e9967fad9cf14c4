-- The first unfinished task of a range of ids: $1 first and $2 last id. Whoever asks again begins with the answer,
-- so that the dead rows of finished tasks are walked once.
select live.id
from fencepost.live
where live.id between $1::bigint and $2::bigint
order by live.id
limit 1
