-- Locks unfinished members of a run that is over and answers their ids, for cancel_tasks in the same transaction: $1
-- run, $2 how many. A row that somebody else has locked is passed over, so that one open handler transaction keeps
-- no other member alive; the next look finds it.
select live.id
from fencepost.live
where
    live.run_id = $1::bigint
    and not live.cancel_requested
    and (
        select workflow.state <> 'running'
        from fencepost.workflow
        where workflow.run_id = $1::bigint
    )
limit $2::int
for update skip locked
