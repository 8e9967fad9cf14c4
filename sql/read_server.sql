-- What a migration needs to know of the server before it changes anything: the version as a number, the
-- encoding of this database, whether it can be written to.
select
    current_setting('server_version_num')::int as version,
    current_setting('server_encoding') as encoding,
    pg_is_in_recovery() as standby;
