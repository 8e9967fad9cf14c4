-- Writes what differs in a replica's workers: $1 dispatcher; per worker: $2 id, $3 identity, $4 node, $5 task queue,
-- $6 build, $7 transport, $8 state, $9 slots, $10 busy slots, $11 of these with what has
-- not stopped. Workers that are not named are gone; the nodes of the others are noted.
with gone as (
    delete from fencepost.worker
    where worker.dispatcher = $1::bigint and worker.worker_id <> all($2::text[])
),

seen as (
    insert into fencepost.node (name, seen_at)
    select distinct
        given.node,
        statement_timestamp()
    from unnest($4::text[]) as given (node)
    where given.node <> ''
    order by given.node
    on conflict (name) do update
        set seen_at = excluded.seen_at
        where node.seen_at < excluded.seen_at - interval '1 minute'
)

insert into fencepost.worker (
    worker_id, dispatcher, identity, node, task_queue, build_id, transport, state, slots, busy, stuck
)
select
    given.worker_id,
    $1::bigint,
    given.identity,
    given.node,
    given.task_queue,
    given.build_id,
    given.transport,
    given.state,
    given.slots,
    given.busy,
    given.stuck
from unnest(
        $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::int[], $10::int[],
        $11::int[]
    ) as given (worker_id, identity, node, task_queue, build_id, transport, state, slots, busy, stuck)
on conflict (worker_id) do update
    set
        state = excluded.state,
        slots = excluded.slots,
        busy = excluded.busy,
        stuck = excluded.stuck
    where
    (worker.state, worker.slots, worker.busy, worker.stuck)
    is distinct from (excluded.state, excluded.slots, excluded.busy, excluded.stuck)
