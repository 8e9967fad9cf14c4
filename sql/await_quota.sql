-- Waits for one quota, as the first lock of its transaction: $1 kind, $2 number, both as lock_quotas has them, $3 the
-- longest wait as a setting of lock_timeout, $4 that setting for the rest of the transaction. The columns are computed
-- one after the other.
select
    set_config('lock_timeout', $3::text, true) as wait,
    pg_advisory_xact_lock(1178944600 + $1::int, $2::int) as lock,
    set_config('lock_timeout', $4::text, true) as after
