-- The runs of one workflow that are not settled: $1 workflow.
select workflow.run_id
from fencepost.workflow
where workflow.workflow_id = $1::bigint and not workflow.settled
order by workflow.run_number
