-- Moves a redrive on by one batch: $1 id, $2 letters at most. Answers its state and how many letters it took up, or
-- nothing where it is not due or another replica is at it.
select
    driven.state,
    driven.took
from fencepost.drive_redrive($1::bigint, $2::int) as driven
