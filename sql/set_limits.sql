-- Stores the limits that every door checks: $1 payload bytes, $2 result bytes; null keeps what is there.
update fencepost.limits
set
    payload_bytes = coalesce($1::int, limits.payload_bytes),
    result_bytes = coalesce($2::int, limits.result_bytes)
returning limits.payload_bytes, limits.result_bytes
