-- Wins or loses this tick's chores until the end of the transaction. The first number is fencepost's own lock class.
select pg_try_advisory_xact_lock(1178944598, 1) as won
