-- Brings the planner's statistics up to date after a bulk load, as autovacuum does a little later.
analyze fencepost.live, fencepost.task
