-- Clears the hold bit of members of a run that is no longer paused: $1 run, $2 how many of each hold. Answers their
-- routes, since rows come back below the low-water marks. A row that is locked is passed over and found by the next
-- look.
with picked as materialized (
    select mine.id
    from unnest('{1,3,5,7}'::smallint[]) as held (hold)
    cross join lateral (
        select live.id
        from fencepost.live
        where
            live.run_id = $1::bigint
            and live.hold = held.hold
            and (
                select workflow.state = 'running' and workflow.paused is null
                from fencepost.workflow
                where workflow.run_id = $1::bigint
            )
        limit $2::int
        for update skip locked
    ) as mine
)

update fencepost.live
set hold = live.hold & 6
where live.id = any(array(select picked.id from picked))
returning
    live.id,
    live.route_id
