-- What operators see of the lines of many tenants without reading them as a whole.

set local lock_timeout = '5s';

-- Held rows stand in no other index by their route; a row that nothing holds costs this one nothing.
create index live_held on fencepost.live (route_id, hold)
where hold <> 0;

-- How many rows of a route are ready and due, or ready and due later, as the planner guesses from the statistics: for
-- lines that are too long to be counted. Autovacuum renews the statistics of a queue that moves.
create function fencepost.estimate_ready(wanted_route int, later boolean) returns bigint
language plpgsql
as $$
declare
    plan json;
begin
    execute format(
        'explain (format json) select from fencepost.live where state = 0 and hold = 0 and route_id = %s'
        || ' and visible_after %s statement_timestamp()',
        wanted_route, case when later then '>' else '<=' end
    ) into plan;
    return (plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint;
end
$$;
