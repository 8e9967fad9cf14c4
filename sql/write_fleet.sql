-- Writes what differs in a replica's slot groups: $1 dispatcher; per group: $2 key, $3 namespaces as one JSON list
-- (null for all), $4 task queue, $5 task types as one JSON list, $6 node, $7 workers, $8 unreachable ones, $9 slots,
-- $10 free slots, $11 and $12 bytes of the largest frames over gRPC and WebSocket. Groups that are not named are gone.
with gone as (
    delete from fencepost.fleet
    where fleet.dispatcher = $1::bigint and fleet.slot_group <> all($2::text[])
)

insert into fencepost.fleet (
    dispatcher, slot_group, namespaces, task_queue, task_types, node, workers, unreachable, slots, free,
    grpc_frame_bytes, websocket_frame_bytes
)
select
    $1::bigint,
    given.slot_group,
    case
        when given.namespaces is not null
            then array(select jsonb_array_elements_text(given.namespaces::jsonb))
    end,
    given.task_queue,
    array(select jsonb_array_elements_text(given.task_types::jsonb)),
    given.node,
    given.workers,
    given.unreachable,
    given.slots,
    given.free,
    given.grpc_frame_bytes,
    given.websocket_frame_bytes
from unnest(
        $2::text[],
        $3::text[],
        $4::text[],
        $5::text[],
        $6::text[],
        $7::int[],
        $8::int[],
        $9::int[],
        $10::int[],
        $11::bigint[],
        $12::bigint[]
    ) as given (
        slot_group, namespaces, task_queue, task_types, node, workers, unreachable, slots, free,
        grpc_frame_bytes, websocket_frame_bytes
    )
on conflict (dispatcher, slot_group) do update
    set
        workers = excluded.workers,
        unreachable = excluded.unreachable,
        slots = excluded.slots,
        free = excluded.free,
        grpc_frame_bytes = excluded.grpc_frame_bytes,
        websocket_frame_bytes = excluded.websocket_frame_bytes
    where
    (fleet.workers, fleet.unreachable, fleet.slots, fleet.free, fleet.grpc_frame_bytes, fleet.websocket_frame_bytes)
    is distinct from
    (
        excluded.workers,
        excluded.unreachable,
        excluded.slots,
        excluded.free,
        excluded.grpc_frame_bytes,
        excluded.websocket_frame_bytes
    )
