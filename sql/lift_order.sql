-- Lifts what was ordered for workers: $1 identities.
delete from fencepost.worker_order
where worker_order.identity = any($1::text[])
