-- What this database has done since its statistics began: transactions, and bytes of WAL of the whole server.
select
    pg_stat_database.xact_commit + pg_stat_database.xact_rollback as transactions,
    (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as wal_bytes
from pg_stat_database
where pg_stat_database.datname = current_database()
