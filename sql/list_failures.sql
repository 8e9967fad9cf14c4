-- Lists the failed and lost deliveries of one task, the first at first: $1 id, $2 how many at most.
select
    failure.attempt,
    failure.fence,
    failure.move,
    failure.worker,
    nullif(failure.node, '') as node,
    failure.error_class,
    failure.error_message,
    fencepost.rfc3339(failure.claimed_at) as claimed_at,
    fencepost.rfc3339(failure.failed_at) as failed_at
from fencepost.failure
where failure.id = $1::bigint
order by failure.failed_at, failure.fence
limit $2::bigint
