-- Clears up after dead replicas: their groups and workers at once, and they themselves when they died over an hour ago
-- and own nothing any more. Nodes that no worker has been on for 90 days, as long as dead letters are kept, go too.
with groups as (
    delete from fencepost.fleet
    where fleet.dispatcher <> all(array(select alive.id from fencepost.dispatcher as alive where alive.dead_at is null))
),

workers as (
    delete from fencepost.worker
    where worker.dispatcher
        <> all(array(select alive.id from fencepost.dispatcher as alive where alive.dead_at is null))
),

nodes as (
    delete from fencepost.node
    where node.seen_at < statement_timestamp() - interval '90 days'
)

delete from fencepost.dispatcher
where
    dispatcher.dead_at < statement_timestamp() - interval '1 hour'
    and not exists (
        select from fencepost.live
        where live.dispatcher = dispatcher.id
    )
