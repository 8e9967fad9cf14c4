-- Puts a webhook event off: $1 event, $2 the try that failed, $3 milliseconds until the next, $4 why. A later try that
-- another replica has begun meanwhile is left alone.
update fencepost.dead_letter_event
set
    next_at = statement_timestamp() + $3::bigint * interval '1 millisecond',
    last_error = left($4::text, 1000)
where event_id = $1::bigint and tries = $2::int
