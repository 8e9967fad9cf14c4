-- Forgets runs of workflows that are settled: $1 milliseconds since they ended, $2 rows at most. Answers how many rows
-- are gone.
select fencepost.forget_workflows($1::bigint * interval '1 millisecond', $2::int) as gone
