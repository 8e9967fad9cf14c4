-- What operators ordered, by worker identity.
select
    worker_order.identity,
    worker_order.action
from fencepost.worker_order
