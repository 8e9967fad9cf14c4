-- Sets the hold bit of members of a paused run, whatever their state: $1 run, $2 how many of each other hold. A row
-- that is locked is passed over and found by the next look; until then the claim sees the run's mark.
with picked as materialized (
    select mine.id
    from unnest('{0,2,4,6}'::smallint[]) as free (hold)
    cross join lateral (
        select live.id
        from fencepost.live
        where
            live.run_id = $1::bigint
            and live.hold = free.hold
            and (
                select workflow.state = 'running' and workflow.paused is not null
                from fencepost.workflow
                where workflow.run_id = $1::bigint
            )
        limit $2::int
        for update skip locked
    ) as mine
)

update fencepost.live
set hold = live.hold | 1
where live.id = any(array(select picked.id from picked))
returning live.id
