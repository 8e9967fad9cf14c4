-- Lets a redrive go on: $1 id. Answers its state, null when there is none.
select fencepost.resume_redrive($1::bigint) as state
