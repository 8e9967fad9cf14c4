-- Keeps the list of routes that nobody serves: $1 all that look so now, the others leave the list; of these the
-- judged ones: $2 routes (unique), $3 reasons, $4 milliseconds since each was last seen served. Answers those that
-- are new or have another reason than before.
with served as (
    delete from fencepost.unserved
    where unserved.route_id <> all($1::int[])
)

insert into fencepost.unserved (route_id, reason, since)
select
    given.route_id,
    given.reason,
    statement_timestamp() - given.for_ms * interval '1 millisecond'
from unnest($2::int[], $3::text[], $4::bigint[]) as given (route_id, reason, for_ms)
order by given.route_id
on conflict (route_id) do update
    set reason = excluded.reason
    where unserved.reason <> excluded.reason
returning unserved.route_id
