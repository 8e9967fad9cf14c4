-- Lists the workers of all live replicas, as of their last beats, and what operators ordered, also for workers that
-- are away: $1 milliseconds of silence after which a replica's word counts for nothing, $2 how many.
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
order by identity, present.worker_id
limit $2::bigint
