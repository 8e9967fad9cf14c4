-- The slot groups of all replicas that nobody has declared dead, but for the caller's own: $1 its dispatcher (null:
-- all), $2 milliseconds of silence after which a replica's word counts for nothing (null: it always counts).
select
    fleet.dispatcher,
    dispatcher.draining,
    fleet.namespaces,
    fleet.task_queue,
    fleet.task_types,
    fleet.node,
    fleet.workers,
    fleet.unreachable,
    fleet.slots,
    fleet.free,
    fleet.grpc_frame_bytes,
    fleet.websocket_frame_bytes
from fencepost.fleet
inner join fencepost.dispatcher on dispatcher.id = fleet.dispatcher
where
    dispatcher.dead_at is null
    and dispatcher.id is distinct from $1::bigint
    and (
        $2::bigint is null
        or dispatcher.heartbeat_at > statement_timestamp() - $2::bigint * interval '1 millisecond'
    )
