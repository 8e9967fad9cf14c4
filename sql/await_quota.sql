-- Waits for one quota, as the first lock of its transaction: $1 kind, $2 number, both as lock_quotas has them, $3 the
-- longest wait as a setting of lock_timeout, which holds until the end of the transaction.
select
    set_config('lock_timeout', $3::text, true) as wait,
    pg_advisory_xact_lock(1178944600 + $1::int, $2::int) as lock
