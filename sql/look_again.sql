-- Judges reports that matched no row: $1 ids, $2 epochs, $3 fences, $4 whether the report is a success,
-- $5 workers, $6 owners (null for a worker's own report). Answers busy where the row is there, matches and was only
-- locked by somebody else; recorded where history shows that this very report has been stored before (a repeat
-- after a commit whose outcome nobody learned); else superseded. A recorded report of a workflow's member comes with
-- its run, and that of a task with a concurrency key with its number: whoever stored it may not have got to look at
-- them.
with judged as materialized (
    select
        given.id,
        case
            when
                exists (
                    select
                    from fencepost.live
                    where
                        live.id = given.id
                        and live.epoch = given.epoch
                        and (given.success or live.fence = given.fence)
                        and (given.owner is null or live.dispatcher = given.owner)
                )
                then 'busy'
            when
                exists (
                    select
                    from fencepost.outcome
                    where
                        outcome.id = given.id
                        and outcome.epoch = given.epoch
                        and outcome.fence = given.fence
                        and (outcome.state = 3 or (outcome.state = 1) = given.success)
                )
                or (
                    not given.success
                    and exists (
                        select
                        from fencepost.failure
                        where
                            failure.id = given.id
                            and failure.epoch = given.epoch
                            and failure.fence = given.fence
                            and failure.worker is not distinct from given.worker
                    )
                )
                then 'recorded'
            else 'superseded'
        end as verdict
    from unnest(
            $1::bigint[], $2::int[], $3::int[], $4::boolean[], $5::text[], $6::bigint[]
        ) as given (id, epoch, fence, success, worker, owner)
)

select
    judged.id,
    judged.verdict,
    case
        when judged.verdict = 'recorded'
            then (
                select task.run_id
                from fencepost.task
                where task.id = judged.id
            )
    end as run_id,
    case
        when judged.verdict = 'recorded'
            then (
                select fencepost.key_of(task.route_id, task.concurrency_key)
                from fencepost.task
                where task.id = judged.id
            )
    end as key_hash
from judged
