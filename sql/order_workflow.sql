-- What an operator orders for a workflow: $1 workflow, $2 pause, resume, cancel or rerun, $3 by whom, $4 why, $5 which
-- members a re-run stages anew. Answers the run that it is about.
select
    case $2::text
        when 'pause' then fencepost.pause_workflow($1::bigint, $3::text, $4::text)
        when 'resume' then fencepost.resume_workflow($1::bigint, $3::text, $4::text)
        when 'cancel' then fencepost.cancel_workflow($1::bigint, $3::text, $4::text)
        when 'rerun' then fencepost.rerun_workflow($1::bigint, $5::text, $3::text, $4::text)
    end as run_id
