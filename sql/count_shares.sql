-- What replicas have claimed of each namespace that has anything claimed, the most at first: $1 how many namespaces. By
-- the index of owners: a row for each claimed task, of which there are as many as slots.
select
    namespace.name as namespace,
    sum(claim.tasks)::bigint as claimed
from (
    select
        owned.route_id,
        count(*) as tasks
    from fencepost.dispatcher
    cross join
        lateral (
            select live.route_id
            from fencepost.live
            where live.dispatcher = dispatcher.id
        ) as owned
    group by owned.route_id
) as claim
cross join
    lateral (
        select known.name
        from fencepost.route
        inner join fencepost.namespace as known on known.namespace_id = route.namespace_id
        where route.route_id = claim.route_id
        limit 1
    ) as namespace
group by namespace.name
order by claimed desc, namespace.name asc
limit $1::bigint
