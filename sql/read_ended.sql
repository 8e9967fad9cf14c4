-- Which of the tasks have ended: $1 ids. For the waits of a whole process at once. The limit keeps each id a look
-- into its own partition, whatever the planner thinks of the others.
select ended.id
from unnest($1::bigint[]) as asked (id)
cross join lateral (
    select outcome.id
    from fencepost.outcome
    where outcome.id = asked.id
    limit 1
) as ended
