-- Proves that the server is still at the other end.
select 1
