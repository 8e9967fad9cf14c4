-- Makes the day partitions that are missing: $1 days ahead.
select fencepost.make_partitions($1::int) as reached_ms
