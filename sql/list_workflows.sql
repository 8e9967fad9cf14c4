-- Runs of workflows, newest first: $1 namespace, $2 state, $3 name (each null for any), $4 the run id that all
-- answered ones are below, $5 how many runs to look at, $6 how many to answer. As in list_tasks a page ends after $5
-- of them, and each row (the only one, without a run, on an empty page) says how many were looked at and which was
-- the last.
with looked as materialized (
    select workflow.*
    from fencepost.workflow
    where workflow.run_id < $4::bigint
    order by workflow.run_id desc
    limit $5::bigint
),

page as materialized (
    select
        looked.workflow_id,
        looked.run_id,
        looked.run_number,
        namespace.name as namespace,
        looked.name,
        looked.mode,
        looked.state,
        looked.paused is not null as is_paused,
        fencepost.rfc3339(looked.created_at) as created_at,
        fencepost.rfc3339(looked.ended_at) as ended_at
    from looked
    inner join fencepost.namespace on namespace.namespace_id = looked.namespace_id
    where
        not looked.forgotten
        and ($1::text is null or namespace.name = $1::text)
        and ($2::text is null or looked.state = $2::text)
        and ($3::text is null or looked.name = $3::text)
    order by looked.run_id desc
    limit $6::bigint
)

select
    page.*,
    bounds.looked_at,
    bounds.last_run
from (
    select
        count(*) as looked_at,
        min(looked.run_id) as last_run
    from looked
) as bounds
left join page on true
order by page.run_id desc
