-- Forgets redrives that are over: $1 milliseconds since they moved last, $2 rows at most. Answers how many rows are
-- gone.
select fencepost.forget_redrives($1::bigint * interval '1 millisecond', $2::int) as gone
