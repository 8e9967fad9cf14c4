-- Starts a redrive by filter: $1 filter (the bytes of a JSON object), $2 whether it may take all, $3 letters a second,
-- $4 how many go first, $5 the share of those that may die again (each null for the default), $6 whether also judged
-- letters, $7 whether to the route without the node, $8 by whom and $9 why, $10 whether only to count. Answers its id,
-- null after a count, and how many letters it takes.
select
    started.redrive_id,
    started.total
from fencepost.start_redrive(
        filter => (fencepost.read_objects(array[$1::bytea], 'FP040', 'invalid_filter', 'filter'))[1],
        all_letters => $2::boolean,
        rate => $3::double precision,
        canary => $4::int,
        canary_share => $5::double precision,
        forced => $6::boolean,
        clear_pin => $7::boolean,
        started_by => $8::text,
        reason => $9::text,
        dry_run => $10::boolean
    ) as started
