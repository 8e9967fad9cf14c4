-- Runs of workflows that are not settled, in the order of their ids: $1 the id that all are above, $2 how many.
select workflow.run_id
from fencepost.workflow
where not workflow.settled and workflow.run_id > $1::bigint
order by workflow.run_id
limit $2::int
