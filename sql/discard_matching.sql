-- Discards the next dead letters by id that a filter takes: $1 filter (the bytes of a JSON object), $2 whether it may
-- take all, $3 the id that they are above, $4 when they have died at the latest (null: now), $5 how many at most.
-- Answers how many, the id to go on above (null: none is left), and what $4 was.
select
    done.discarded,
    done.last_id,
    done.bound
from fencepost.discard_matching(
        filter => (fencepost.read_objects(array[$1::bytea], 'FP040', 'invalid_filter', 'filter'))[1],
        all_letters => $2::boolean,
        after => $3::bigint,
        until => $4::timestamptz,
        batch => $5::int
    ) as done
