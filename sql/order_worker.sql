-- Orders something for workers, in place of what was ordered before: $1 identities, $2 action, $3 by whom, $4 why.
insert into fencepost.worker_order (identity, action, ordered_by, reason)
select
    given.identity,
    $2::text,
    $3::text,
    $4::text
from (select distinct unnest($1::text[]) as identity) as given
order by given.identity
on conflict (identity) do update
    set
        action = excluded.action,
        ordered_by = excluded.ordered_by,
        reason = excluded.reason,
        ordered_at = excluded.ordered_at
