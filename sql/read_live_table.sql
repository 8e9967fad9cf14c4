-- The table of unfinished tasks with its indexes: bytes, and as the statistics have them rows, dead rows that are not
-- vacuumed yet, and seconds since the last vacuum (null: never).
select
    pg_total_relation_size(stat.relid) as bytes,
    stat.n_live_tup as live_rows,
    stat.n_dead_tup as dead_rows,
    extract(epoch from clock_timestamp() - greatest(stat.last_vacuum, stat.last_autovacuum))::bigint as vacuumed_s
from pg_stat_user_tables as stat
where stat.relid = 'fencepost.live'::regclass
