-- The running redrives, the one that is due longest first, with the milliseconds until it is: $1 how many at most.
select
    redrive.redrive_id,
    ceil(extract(epoch from redrive.next_at - statement_timestamp()) * 1000)::bigint as due_in_ms
from fencepost.redrive
where redrive.state = 'running'
order by redrive.next_at
limit $1::bigint
