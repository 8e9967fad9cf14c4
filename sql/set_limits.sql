-- Stores the limits that every door checks: $1 payload bytes, $2 result bytes, $3 milliseconds that dispatch keys of
-- new tasks are remembered; null keeps what is there.
update fencepost.limits
set
    payload_bytes = coalesce($1::int, limits.payload_bytes),
    result_bytes = coalesce($2::int, limits.result_bytes),
    remember = coalesce($3::bigint * interval '1 millisecond', limits.remember)
returning limits.payload_bytes, limits.result_bytes
