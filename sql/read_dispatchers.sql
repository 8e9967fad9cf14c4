-- The replicas that nobody has declared dead, with the counters that judges watch.
select
    dispatcher.id,
    dispatcher.name,
    dispatcher.beat,
    dispatcher.draining,
    dispatcher.awaiting
from fencepost.dispatcher
where dispatcher.dead_at is null
