-- Removes results: $1 milliseconds that they are kept, $2 how many outcomes to look at. Answers how many it looked at.
select fencepost.expire_results($1::bigint * interval '1 millisecond', $2::int) as looked
