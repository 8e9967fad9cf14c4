-- Every move of a claimed task other than its success, and what the chores do to ready ones: $1 ids (unique), $2
-- epochs, $3 fences, $4 owners (null for a worker's own report, which needs no owner but the current fence; 0 for a row
-- that must be ready and so has none), $5 moves, $6 milliseconds until due (null keeps the place in the line), $7 error
-- classes, $8 error messages, $9 workers, $10 nodes; $11 highest number of losses. Answers id, route, run of a
-- workflow's member, where the task went (ready, dead or cancelled), and the number of the concurrency key to look
-- at. A row that is gone, belongs to another delivery or is locked by somebody else is left out: look_again tells
-- which. The first table is the rule book. A cancel that was asked for, or the end of the task's workflow, wins over
-- every move, and too many losses over every move that adds one. Rows are locked by id alone and judged from what the
-- lock returned.
with moves (move, spends, cuts, loses, ends) as (
    values
    ('retry', 1, 1, 0, false),
    ('time_out', 1, 1, 0, false),
    ('retry_at_once', 1, 1, 1, false),
    ('not_accepted', 0, 1, 1, false),
    ('snooze', 0, 1, 0, false),
    ('release', 0, 0, 0, false),
    ('hand_over', 0, 0, 0, false),
    ('re_arm', 0, 0, 1, false),
    ('dead_letter', 1, 1, 0, true),
    ('unservable', 0, 1, 0, true),
    ('expire', 0, 1, 0, true)
),

locked as materialized (
    select
        given.*,
        mine.epoch as current_epoch,
        mine.fence as current_fence,
        mine.dispatcher,
        mine.route_id,
        mine.priority,
        mine.attempt,
        mine.losses,
        mine.claimed_at,
        mine.cancel_requested,
        mine.run_id,
        mine.hold,
        mine.key_hash
    from unnest(
            $1::bigint[], $2::int[], $3::int[], $4::bigint[], $5::text[], $6::bigint[],
            $7::text[], $8::text[], $9::text[], $10::text[]
        ) as given (id, epoch, fence, owner, move, delay_ms, error_class, error_message, worker, node)
    cross join lateral (
        select live.*
        from fencepost.live
        where live.id = given.id
        for update skip locked
    ) as mine
),

judged as materialized (
    select
        locked.*,
        moves.spends,
        moves.cuts,
        moves.loses,
        coalesce(run.mode = 'fail_fast', false) as fails_fast,
        case
            when locked.cancel_requested or run.is_over then 'cancelled'
            when moves.ends or (moves.loses > 0 and locked.losses + moves.loses > $11::int) then 'dead'
            else 'ready'
        end as goes
    from locked
    inner join moves on moves.move = locked.move
    -- The limit keeps it a look for each member.
    left join lateral (
        select
            workflow.mode,
            workflow.state <> 'running' as is_over
        from fencepost.workflow
        where locked.run_id is not null and workflow.run_id = locked.run_id
        limit 1
    ) as run on true
    where
        locked.epoch = locked.current_epoch
        and locked.fence = locked.current_fence
        and (locked.owner is null or locked.owner = coalesce(locked.dispatcher, 0))
),

put_back as (
    update fencepost.live
    set
        state = 0,
        dispatcher = null,
        sweep = null,
        claimed_at = null,
        deadline = null,
        -- The deadline for the start is for tasks that no worker has had yet.
        start_by = case when judged.owner = 0 or judged.move = 'release' then live.start_by end,
        attempt = judged.attempt + judged.spends,
        losses = judged.losses + judged.loses,
        epoch = judged.epoch + judged.cuts,
        visible_after = case
            when judged.delay_ms is null then live.visible_after
            else statement_timestamp() + judged.delay_ms * interval '1 millisecond'
        end
    from judged
    -- As a list of one, since a plan that was made while nothing was unfinished could walk all tasks for a join by `=`.
    where live.id = any(array[judged.id]) and judged.goes = 'ready'
),

removed as (
    delete from fencepost.live
    where live.id = any(array(select judged.id from judged where judged.goes <> 'ready'))
),

ended as (
    insert into fencepost.outcome (
        id, ended_at, claimed_at, attempt, epoch, fence, state, worker, error_class, error_message
    )
    select
        judged.id,
        statement_timestamp(),
        judged.claimed_at,
        judged.attempt + judged.spends,
        case when judged.owner is null then judged.epoch end,
        case when judged.owner is null then judged.fence end,
        case judged.goes when 'dead' then 2 else 3 end,
        judged.worker,
        judged.error_class,
        left(judged.error_message, 4096)
    from judged
    where judged.goes <> 'ready'
),

member_ended as (
    insert into fencepost.workflow_event (run_id, kind, task_id, decides)
    select
        judged.run_id,
        case judged.goes when 'dead' then 'member_failed' else 'member_cancelled' end,
        judged.id,
        judged.fails_fast and judged.goes = 'dead'
    from judged
    where judged.run_id is not null and judged.goes <> 'ready'
),

failed as (
    insert into fencepost.failure (
        id, failed_at, claimed_at, attempt, epoch, fence, move, worker, node, error_class, error_message
    )
    select
        judged.id,
        statement_timestamp(),
        judged.claimed_at,
        judged.attempt + 1,
        judged.epoch,
        judged.fence,
        judged.move,
        judged.worker,
        judged.node,
        coalesce(judged.error_class, judged.move),
        left(judged.error_message, 4096)
    from judged
    where judged.goes <> 'cancelled' and (judged.spends + judged.loses > 0 or judged.goes = 'dead')
),

buried as (
    insert into fencepost.dead_letter (
        id, origin, dead_at, enqueued_at, route_id, attempt, losses, epoch, fence, priority, cause, error_class,
        error_message, max_attempts, run_timeout_ms, heartbeat_timeout_ms, schedule_to_start_ms, settle_accepted,
        workflow_id, run_id, ordinal, content_type, concurrency_key, labels, options, payload
    )
    select
        judged.id,
        task.origin,
        statement_timestamp(),
        task.enqueued_at,
        judged.route_id,
        judged.attempt + judged.spends,
        judged.losses + judged.loses,
        judged.epoch,
        judged.fence,
        judged.priority,
        case
            when judged.losses + judged.loses > $11::int and judged.loses > 0 then 'lost'
            when judged.move = 'unservable' then 'unservable'
            when judged.move = 'expire' then 'schedule_to_start'
            when judged.owner = 0 then 'unserved'
            else 'failed'
        end,
        coalesce(judged.error_class, judged.move),
        left(judged.error_message, 4096),
        task.max_attempts,
        task.run_timeout_ms,
        task.heartbeat_timeout_ms,
        task.schedule_to_start_ms,
        task.settle_accepted,
        task.workflow_id,
        task.run_id,
        task.ordinal,
        task.content_type,
        task.concurrency_key,
        task.labels,
        task.options,
        task.payload
    from judged
    -- The limit keeps each id a look into its own partition: a join could walk one that was empty when it was
    -- last analysed.
    cross join
        lateral (
            select found.*
            from fencepost.task as found
            where found.id = judged.id
            limit 1
        ) as task
    where judged.goes = 'dead'
),

-- A dead letter at the head of a key keeps its place there, where its route says so.
stopped as (
    insert into fencepost.stopped_key (letter_id, key_hash, stopped_at)
    select
        judged.id,
        judged.key_hash,
        statement_timestamp()
    from judged
    where
        judged.goes = 'dead'
        and judged.key_hash is not null
        and judged.hold & 2 = 0
        -- A scalar subquery, which no plan can turn into a walk over all routes.
        and (
            select route.on_dead_key = 'stop'
            from fencepost.route
            where route.route_id = judged.route_id
        )
),

-- Chores on rows that nobody had move on; a replica looks at their keys by itself.
looks as (
    insert into fencepost.key_look (key_hash, due_at)
    select
        judged.key_hash,
        statement_timestamp()
    from judged
    where judged.owner = 0 and judged.goes <> 'ready' and judged.key_hash is not null
),

-- Namespaces that want to know of their dead letters have few of them, the others none.
letter_events as (
    insert into fencepost.dead_letter_event (letter_id, namespace_id, kind)
    select
        judged.id,
        owner.namespace_id,
        way.kind
    from judged
    cross join
        lateral (
            select route.namespace_id
            from fencepost.route
            where route.route_id = judged.route_id
            limit 1
        ) as home
    cross join
        lateral (
            select hook.*
            from fencepost.dead_letter_hook as hook
            where hook.namespace_id = home.namespace_id
            limit 1
        ) as owner
    cross join
        lateral (
            values
            ('notify', owner.notify),
            ('webhook', owner.webhook is not null)
        ) as way (kind, wanted)
    where judged.goes = 'dead' and way.wanted
)

select
    judged.id,
    judged.route_id,
    judged.run_id,
    judged.goes,
    case when judged.goes <> 'ready' then judged.key_hash end as key_hash
from judged
