-- Notes that nothing is left to do for a run that is over: $1 run.
update fencepost.workflow
set settled = true
where
    workflow.run_id = $1::bigint
    and workflow.state <> 'running'
    and (
        select live.id
        from fencepost.live
        where live.run_id = $1::bigint
        limit 1
    ) is null
returning workflow.run_id
