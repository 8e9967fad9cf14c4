-- Lists the workers of all live replicas, as of their last beats, and what operators ordered, also for workers that
-- are away: $1 milliseconds of silence after which a replica's word counts for nothing, $2 how many, $3 and $4 identity
-- and worker (empty for one that is away) that all are behind (null for the first page).
select
    coalesce(present.identity, worker_order.identity) as identity,
    present.worker_id,
    present.state,
    present.slots,
    present.busy,
    present.stuck,
    nullif(present.node, '') as node,
    present.task_queue,
    present.transport,
    present.build_id,
    present.dispatcher,
    present.replica,
    fencepost.rfc3339(present.connected_at) as connected_at,
    worker_order.action,
    worker_order.ordered_by,
    worker_order.reason,
    fencepost.rfc3339(worker_order.ordered_at) as ordered_at
from (
    select
        worker.*,
        dispatcher.name as replica
    from fencepost.worker
    inner join fencepost.dispatcher on dispatcher.id = worker.dispatcher
    where
        dispatcher.dead_at is null
        and dispatcher.heartbeat_at > statement_timestamp() - $1::bigint * interval '1 millisecond'
) as present
full join fencepost.worker_order on worker_order.identity = present.identity
where
    $3::text is null
    or (coalesce(present.identity, worker_order.identity), coalesce(present.worker_id, '')) > ($3::text, $4::text)
order by coalesce(present.identity, worker_order.identity), coalesce(present.worker_id, '')
limit $2::bigint
