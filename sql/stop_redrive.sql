-- Stops a redrive: $1 id, $2 why. Answers its state, null when there is none.
select fencepost.stop_redrive($1::bigint, $2::text) as state
