-- Which deliveries are not over for their worker: $1 ids, $2 epochs, $3 fences. The row is there and current (it is
-- locked, or its end is on the way), or this very delivery has ended the task well and its worker goes on.
select given.id
from unnest($1::bigint[], $2::int[], $3::int[]) as given (id, epoch, fence)
where
    exists (
        select
        from fencepost.live
        where
            live.id = given.id
            and live.epoch = given.epoch
            and live.fence = given.fence
    )
    or exists (
        select
        from fencepost.outcome
        where
            outcome.id = given.id
            and outcome.state = 1
            and outcome.epoch = given.epoch
            and outcome.fence = given.fence
    )
