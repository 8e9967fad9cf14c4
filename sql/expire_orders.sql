-- Forgets orders for workers that are not connected anywhere: $1 days since the order. The names of workers that
-- come and go would pile up else.
delete from fencepost.worker_order
where
    worker_order.ordered_at < statement_timestamp() - $1::int * interval '1 day'
    and not exists (
        select from fencepost.worker
        where worker.identity = worker_order.identity
    )
