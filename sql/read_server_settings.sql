-- The server's settings and load as a check-up sees them, its clock in milliseconds, and whether this role may make
-- partitions, which only the owner of the tables and members of it may.
select
    current_setting('server_version_num')::int as version,
    array(
        select setting.name
        from unnest(array['fsync', 'full_page_writes']) as setting (name)
        where current_setting(setting.name) = 'off'
    ) as not_durable,
    current_setting('autovacuum') = 'on' and current_setting('track_counts') = 'on' as autovacuum,
    current_setting('max_connections')::int as max_connections,
    (
        select count(*)
        from pg_stat_activity as session
        where session.backend_type = 'client backend'
    ) as connections,
    pg_is_in_recovery() as standby,
    (extract(epoch from clock_timestamp()) * 1000)::bigint as clock_ms,
    current_user::text as role,
    -- Where there are no tables yet, whoever migrates will own them.
    coalesce(pg_get_userbyid(tasks.relowner), current_user)::text as owner,
    coalesce(pg_has_role(tasks.relowner, 'usage'), true) as owns
from (values (to_regclass('fencepost.task'))) as wanted (relation)
left join pg_class as tasks on tasks.oid = wanted.relation
