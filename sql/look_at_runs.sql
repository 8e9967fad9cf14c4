-- What runs of workflows need, where they need anything: $1 run ids. finish: no member is unfinished, or one has
-- ended that decides; hold, release: a member's hold bit is not what the run's mark says; cancel: the run is over
-- and a member is not; settle: the run is over and all members are. The cheap look before the lock. Each question
-- ends at the first row that it finds, and the end of the index is asked, where those stand that start last: the
-- front is full of entries of members that have ended. Hold bits are asked for one by one: a list of them would let a
-- plan that was made while nothing was held walk all that is held by now.
with run as materialized (
    select
        given.run_id,
        flow.state,
        flow.is_paused
    from unnest($1::bigint[]) as given (run_id)
    cross join lateral (
        select
            workflow.state,
            workflow.paused is not null as is_paused
        from fencepost.workflow
        where workflow.run_id = given.run_id and not workflow.settled
        limit 1
    ) as flow
),

judged as materialized (
    select
        run.run_id,
        case
            when
                run.state = 'running'
                and (
                    select event.run_id
                    from fencepost.workflow_event as event
                    where event.run_id = run.run_id and event.decides
                    limit 1
                ) is not null
                then 'finish'
            when
                (
                    select live.id
                    from fencepost.live
                    where live.run_id = run.run_id
                    order by live.run_id desc, live.hold desc, live.id desc
                    limit 1
                ) is null
                then case when run.state = 'running' then 'finish' else 'settle' end
            when
                run.state = 'running' and run.is_paused
                and (
                    select mine.id
                    from unnest('{0,2,4,6}'::smallint[]) as asked (hold)
                    cross join
                        lateral (
                            select live.id
                            from fencepost.live
                            where live.run_id = run.run_id and live.hold = asked.hold
                            limit 1
                        ) as mine
                    limit 1
                ) is not null
                then 'hold'
            when
                run.state = 'running' and not run.is_paused
                and (
                    select mine.id
                    from unnest('{1,3,5,7}'::smallint[]) as asked (hold)
                    cross join
                        lateral (
                            select live.id
                            from fencepost.live
                            where live.run_id = run.run_id and live.hold = asked.hold
                            limit 1
                        ) as mine
                    limit 1
                ) is not null
                then 'release'
            when
                run.state <> 'running'
                and (
                    select live.id
                    from fencepost.live
                    where live.run_id = run.run_id and not live.cancel_requested
                    limit 1
                ) is not null
                then 'cancel'
        end as step
    from run
)

select
    judged.run_id,
    judged.step
from judged
where judged.step is not null
