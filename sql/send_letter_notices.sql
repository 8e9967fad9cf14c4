-- Sends what is to be notified of dead letters, the first at first: $1 how many at most. An event goes with the commit
-- that sends it, so that it is sent once or, after a crash, again by the next. Answers how many.
with due as materialized (
    select event.event_id
    from fencepost.dead_letter_event as event
    where event.kind = 'notify'
    order by event.event_id
    limit $1::bigint
    for update skip locked
),

taken as (
    delete from fencepost.dead_letter_event as event
    where event.event_id = any(array(select due.event_id from due))
    returning event.letter_id
)

select
    count(
        pg_notify(
            'fencepost_dead_letters',
            json_build_object(
                'task_id', taken.letter_id::text,
                'namespace', address.namespace,
                'task_queue', address.task_queue,
                'task_type', address.task_type,
                'node', nullif(address.node, '')
            )::text
        )::text
    ) as sent
from taken
cross join
    lateral (
        select dead_letter.route_id
        from fencepost.dead_letter
        where dead_letter.id = taken.letter_id
        limit 1
    ) as letter
cross join
    lateral (
        select
            namespace.name as namespace,
            route.task_queue,
            route.task_type,
            route.node
        from fencepost.route
        inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
        where route.route_id = letter.route_id
        limit 1
    ) as address
