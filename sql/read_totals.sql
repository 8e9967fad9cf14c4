-- How many rows have been written into the tables of history since the server's statistics began, those of transactions
-- that were rolled back included: tasks, ends of tasks, failed tries; and the time of the database. Sessions report to
-- the statistics about once a second while they are busy. Days that are dropped take their counts along.
select
    statement_timestamp() as at,
    coalesce(sum(stat.n_tup_ins) filter (where part.inhparent = 'fencepost.task'::regclass), 0)::bigint as enqueued,
    coalesce(sum(stat.n_tup_ins) filter (where part.inhparent = 'fencepost.outcome'::regclass), 0)::bigint as ended,
    coalesce(sum(stat.n_tup_ins) filter (where part.inhparent = 'fencepost.failure'::regclass), 0)::bigint as failed
from pg_inherits as part
inner join pg_stat_user_tables as stat on stat.relid = part.inhrelid
where
    part.inhparent in (
        'fencepost.task'::regclass, 'fencepost.outcome'::regclass, 'fencepost.failure'::regclass
    )
