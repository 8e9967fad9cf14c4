-- One run of a workflow: $1 workflow, $2 run (null for the newest). Members by how they ended: a redriven one counts as
-- what its newest task is.
select
    workflow.workflow_id,
    workflow.run_id,
    workflow.run_number,
    namespace.name as namespace,
    workflow.name,
    workflow.mode,
    workflow.state,
    workflow.paused::text as paused,
    workflow.continued_as,
    fencepost.rfc3339(workflow.created_at) as created_at,
    fencepost.rfc3339(workflow.ended_at) as ended_at,
    members.total,
    coalesce(told.done, 0) as done,
    coalesce(told.failed - told.redriven, 0) as failed,
    coalesce(told.cancelled, 0) as cancelled
from fencepost.workflow
inner join fencepost.namespace on namespace.namespace_id = workflow.namespace_id
cross join
    lateral (
        select count(*) as total
        from fencepost.workflow_member
        where workflow_member.run_id = workflow.run_id
    ) as members
cross join
    lateral (
        select
            count(*) filter (where event.kind in ('member_done', 'member_kept')) as done,
            count(*) filter (where event.kind = 'member_failed') as failed,
            count(*) filter (where event.kind = 'member_redriven') as redriven,
            count(*) filter (where event.kind = 'member_cancelled') as cancelled
        from fencepost.workflow_event as event
        where event.run_id = workflow.run_id
    ) as told
where
    workflow.workflow_id = $1::bigint
    and not workflow.forgotten
    and ($2::bigint is null or workflow.run_id = $2::bigint)
order by workflow.run_number desc
limit 1
