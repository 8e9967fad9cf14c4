-- Takes webhook events that are due, counts the try before it is made, and keeps others from them for a while:
-- $1 namespaces that have enough under way here, $2 how many of each, $3 how many namespaces, $4 milliseconds to keep
-- them. Namespaces come in random order, so that those whose owner hangs starve no other. Answers what to send where;
-- without a body the letter is gone, without an address its hook.
with owners as materialized (
    select
        hook.namespace_id,
        hook.webhook,
        hook.secret
    from fencepost.dead_letter_hook as hook
    -- The limit keeps it one look a namespace, whatever waits there.
    cross join
        lateral (
            select event.event_id
            from fencepost.dead_letter_event as event
            where
                event.namespace_id = hook.namespace_id
                and event.kind = 'webhook'
                and event.next_at <= statement_timestamp()
            order by event.next_at
            limit 1
        ) as first_due
    where hook.webhook is not null and hook.namespace_id <> all($1::int[])
    order by random()
    limit $3::bigint
),

due as materialized (
    select mine.event_id
    from owners
    cross join lateral (
        select event.event_id
        from fencepost.dead_letter_event as event
        where
            event.namespace_id = owners.namespace_id
            and event.kind = 'webhook'
            and event.next_at <= statement_timestamp()
        order by event.next_at
        limit $2::bigint
        for update skip locked
    ) as mine
),

taken as (
    update fencepost.dead_letter_event as event
    set
        tries = event.tries + 1,
        next_at = statement_timestamp() + $4::bigint * interval '1 millisecond'
    where event.event_id = any(array(select due.event_id from due))
    returning event.*
)

select
    taken.event_id,
    taken.letter_id,
    taken.namespace_id,
    taken.tries,
    floor(extract(epoch from statement_timestamp() - taken.created_at) * 1000)::bigint as age_ms,
    floor(extract(epoch from clock_timestamp()))::bigint as sent_at,
    hook.webhook,
    hook.secret,
    letter.body
from taken
inner join fencepost.dead_letter_hook as hook on hook.namespace_id = taken.namespace_id
left join lateral (
    select found.*
    from fencepost.dead_letter as found
    where found.id = taken.letter_id
    limit 1
) as dead on true
left join lateral (
    select
        json_build_object(
            'event', 'dead_letter',
            'event_id', taken.event_id::text,
            'task_id', dead.id::text,
            'origin', dead.origin::text,
            'namespace', namespace.name,
            'task_queue', route.task_queue,
            'task_type', route.task_type,
            'node', nullif(route.node, ''),
            'cause', dead.cause,
            'error_class', dead.error_class,
            'error_message', dead.error_message,
            'attempt', dead.attempt,
            'losses', dead.losses,
            'labels', coalesce(dead.labels, '{}'),
            'workflow_id', dead.workflow_id::text,
            'run_id', dead.run_id::text,
            'ordinal', dead.ordinal,
            'enqueued_at', fencepost.rfc3339(dead.enqueued_at),
            'dead_at', fencepost.rfc3339(dead.dead_at)
        )::text as body
    from fencepost.route
    inner join fencepost.namespace on namespace.namespace_id = route.namespace_id
    where route.route_id = dead.route_id
    limit 1
) as letter on true
