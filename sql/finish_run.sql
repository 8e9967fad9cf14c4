-- Ends a workflow's run if it is time: $1 run. Answers its new state, null, or busy where somebody has its row locked.
select fencepost.finish_run($1::bigint) as state
