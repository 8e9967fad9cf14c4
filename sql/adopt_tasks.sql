-- Takes over running tasks that a worker brings along from another replica: $1 ids (sorted, unique), $2 epochs, $3
-- fences, $4 dispatcher, $5 milliseconds that a deadline allows beyond the run timeout, $6 run timeout of tasks
-- without one of their own, $7 sweep number, so that an adoption of unknown outcome can be found again. The
-- delivery must still be the current one, claimed by anyone or put back and not claimed again. Answers the rows
-- that are this dispatcher's now.
with me as materialized (
    select dispatcher.id
    from fencepost.dispatcher
    where dispatcher.id = $4::bigint and dispatcher.dead_at is null
),

locked as materialized (
    select
        given.*,
        mine.epoch as current_epoch,
        mine.fence as current_fence,
        mine.dispatcher,
        mine.sweep,
        mine.cancel_requested
    from me
    cross join unnest($1::bigint[], $2::int[], $3::int[]) as given (id, epoch, fence)
    cross join lateral (
        select live.*
        from fencepost.live
        where live.id = given.id
        for update
    ) as mine
)

update fencepost.live
set
    state = 1,
    dispatcher = $4::bigint,
    sweep = $7::bigint,
    claimed_at = statement_timestamp(),
    -- The run timeout goes on over the move: a deadline stays. One that was put back has none left.
    deadline = case
        when live.deadline is not null or live.cancel_requested then live.deadline
        when coalesce(live.run_timeout_ms, $6::bigint) > 0
            then
                statement_timestamp()
                + (coalesce(live.run_timeout_ms, $6::bigint) + $5::bigint) * interval '1 millisecond'
    end
where
    live.id = any(array(
        select locked.id
        from locked
        where locked.epoch = locked.current_epoch and locked.fence = locked.current_fence
            and (locked.dispatcher is distinct from $4::bigint or locked.sweep = any($8::bigint[]))
    ))
returning
    live.id,
    live.route_id,
    live.priority,
    live.visible_after,
    live.attempt,
    live.losses,
    live.epoch,
    live.fence,
    live.cancel_requested,
    -- how long ago the delivery was claimed first, which its deadline tells; zero where that is not known
    case
        when not live.cancel_requested
            then
                greatest(
                    coalesce(live.run_timeout_ms, $6::bigint) + $5::bigint
                    - extract(epoch from live.deadline - statement_timestamp()) * 1000,
                    0
                )::bigint
    end as claimed_for_ms
