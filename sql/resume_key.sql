-- Lets a stopped concurrency key go on: $1 namespace (null for the default one), $2 key. Answers how many dead letters
-- had stopped it.
select fencepost.resume_key(namespace => $1::text, concurrency_key => $2::text) as lifted
