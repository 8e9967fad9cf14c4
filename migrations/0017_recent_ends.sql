-- What has ended of late, over all replicas, without an index that every end would pay for.

set local lock_timeout = '5s';

-- Ends of the last while. Outcomes are only ever added, so the newest stand on the last pages of each partition: so
-- many of these are read, however many tasks end. `covers` is the time that they tell of: `within`, or less where
-- more tasks ended than fit there; each row stands for 1 / covers ends a second.
create function fencepost.recent_ends(pages int, within interval) returns table (
    id bigint, state smallint, claimed_at timestamptz, ended_at timestamptz, covers interval
)
language plpgsql stable
as $$
declare
    part regclass;
    first_page bigint;
    first_row tid;
    since timestamptz;
begin
    for part in
        select inhrelid from pg_inherits where inhparent = 'fencepost.outcome'::regclass and not inhdetachpending
    loop
        first_page := pg_relation_size(part) / current_setting('block_size')::int - pages;
        first_row := format('(%s,0)', greatest(first_page, 0))::tid;
        since := statement_timestamp() - within;
        if first_page > 0 then
            execute format('select greatest(min(ended_at), $2) from %s where ctid >= $1', part)
            into since
            using first_row, since;
        end if;
        return query execute format(
            'select id, state, claimed_at, ended_at, $3 from %s where ctid >= $1 and ended_at >= $2', part
        )
        using first_row, since, greatest(statement_timestamp() - since, interval '50 ms');
    end loop;
end
$$;
