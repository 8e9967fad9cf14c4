-- Forgets dispatch keys whose time is over: $1 the task id to go on after, $2 how many to look at. Answers how many
-- it looked at, the last task's id, and how many it forgot. A key is judged as the snapshot shows it, then locked, and
-- goes only when it still names the same task: that one's end is final, while a newer one would not be seen here.
with looked as materialized (
    select
        held.namespace_id,
        held.key,
        held.task_id,
        held.remember
    from fencepost.dispatch_key as held
    where
        held.task_id > $1::bigint
        -- a younger task can't have ended so long ago
        and held.task_id
        < fencepost.id_ms(statement_timestamp() - (select limits.remember from fencepost.limits)) << 22
    order by held.task_id
    limit $2::int
),

expired as materialized (
    select looked.*
    from looked
    where fencepost.key_expired(looked.task_id, looked.remember)
),

locked as materialized (
    select
        expired.namespace_id,
        expired.key,
        expired.task_id as judged_id,
        mine.task_id
    from expired
    cross join lateral (
        select held.task_id
        from fencepost.dispatch_key as held
        where held.namespace_id = expired.namespace_id and held.key = expired.key
        for update skip locked
    ) as mine
),

forgotten as (
    delete from fencepost.dispatch_key as held
    using locked
    where
        held.namespace_id = locked.namespace_id
        and held.key = locked.key
        and locked.task_id = locked.judged_id
    returning held.task_id
)

select
    (select count(*) from looked) as looked,
    (select max(looked.task_id) from looked) as last_id,
    (select count(*) from forgotten) as forgotten
