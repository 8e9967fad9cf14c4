-- Lists redrives, the newest first: $1 one of them (null for all), $2 the id that all are below, $3 how many at most.
select
    redrive.redrive_id,
    redrive.filter::text as filter,
    redrive.forced,
    redrive.clear_pin,
    redrive.rate,
    redrive.canary,
    redrive.canary_share,
    redrive.canary_passed,
    redrive.state,
    redrive.detail,
    redrive.started_by,
    redrive.reason,
    redrive.total,
    redrive.redriven,
    redrive.skipped,
    fencepost.rfc3339(redrive.started_at) as started_at,
    fencepost.rfc3339(redrive.updated_at) as updated_at,
    fencepost.rfc3339(redrive.ended_at) as ended_at
from fencepost.redrive
where redrive.redrive_id = coalesce($1::bigint, redrive.redrive_id) and redrive.redrive_id < $2::bigint
order by redrive.redrive_id desc
limit $3::bigint
