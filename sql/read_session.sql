-- Process id of this session at the server.
select pg_backend_pid() as pid
