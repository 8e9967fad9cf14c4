-- Lists the starts of replicas that are kept, the living first, the newest at first: $1 milliseconds of silence after
-- which one counts as silent though nobody has declared it dead, $2 how many. What they have claimed is counted up to
-- $3, by the index of owners; workers and slots are as of their last beats.
select
    dispatcher.id,
    dispatcher.name,
    dispatcher.version,
    case
        when dispatcher.dead_at is not null then 'dead'
        when dispatcher.heartbeat_at <= statement_timestamp() - $1::bigint * interval '1 millisecond' then 'silent'
        when dispatcher.draining then 'draining'
        else 'up'
    end as state,
    dispatcher.sleeping,
    dispatcher.held_back,
    fencepost.rfc3339(dispatcher.started_at) as started_at,
    fencepost.rfc3339(dispatcher.dead_at) as dead_at,
    floor(extract(epoch from statement_timestamp() - dispatcher.heartbeat_at) * 1000)::bigint as silent_ms,
    connected.workers,
    connected.slots,
    connected.busy,
    owned.claimed
from fencepost.dispatcher
cross join
    lateral (
        select
            count(*) as workers,
            coalesce(sum(worker.slots), 0)::bigint as slots,
            coalesce(sum(worker.busy), 0)::bigint as busy
        from fencepost.worker
        where worker.dispatcher = dispatcher.id and dispatcher.dead_at is null
    ) as connected
cross join
    lateral (
        select count(*) as claimed
        from (
            select
            from fencepost.live
            where live.dispatcher = dispatcher.id
            limit $3::bigint
        ) as claim
    ) as owned
order by dispatcher.dead_at is not null, dispatcher.id desc
limit $2::bigint
