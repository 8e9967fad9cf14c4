-- Tells the replicas that there are orders in rows, which they read with each beat at the latest.
select fencepost.notify_orders()
