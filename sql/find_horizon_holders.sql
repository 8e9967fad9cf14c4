-- Who keeps dead rows of this database from being vacuumed, the oldest first: $1 how many seconds at least, $2 how
-- many. A replication slot says no time. Sessions of other roles are seen whole by members of pg_read_all_stats alone.
select
    holder.kind,
    holder.pid,
    holder.name,
    holder.state,
    holder.seconds,
    holder.transactions
from (
    select
        'session' as kind,
        session.pid,
        session.application_name as name,
        session.state,
        extract(epoch from clock_timestamp() - session.xact_start)::bigint as seconds,
        greatest(age(session.backend_xmin), age(session.backend_xid)) as transactions
    from pg_stat_activity as session
    where
        session.datname = current_database()
        and session.backend_type = 'client backend'
        and session.pid <> pg_backend_pid()
        and coalesce(session.backend_xmin, session.backend_xid) is not null

    union all

    select
        'prepared transaction' as kind,
        null::int as pid,
        prepared.gid as name,
        'prepared' as state,
        extract(epoch from clock_timestamp() - prepared.prepared)::bigint as seconds,
        age(prepared.transaction) as transactions
    from pg_prepared_xacts as prepared
    where prepared.database = current_database()

    union all

    select
        'replication slot' as kind,
        slot.active_pid as pid,
        slot.slot_name::text as name,
        case when slot.active then 'active' else 'inactive' end as state,
        null::bigint as seconds,
        age(slot.xmin) as transactions
    from pg_replication_slots as slot
    where slot.xmin is not null
) as holder
where coalesce(holder.seconds >= $1::bigint, not holder.state = 'active')
order by holder.seconds desc nulls last, holder.transactions desc
limit $2::bigint
