-- From the first claim to the last end of a range of ids, in microseconds: $1 first and $2 last id. A task that was
-- claimed more than once counts with its last claim.
select (extract(epoch from max(outcome.ended_at) - min(outcome.claimed_at)) * 1000000)::bigint as span_us
from fencepost.outcome
where outcome.id between $1::bigint and $2::bigint
