-- Tries to take quotas and rates until the end of the transaction: $1 kinds (1 of a namespace, 2 of a route), $2
-- numbers. Answers whether each is held now. Nobody else claims against a quota that is held, or takes tokens from a
-- bucket that is, so what a later statement of this transaction reads stays true until its commit. Trying never waits,
-- so two replicas never wait both ways.
select
    asked.kind,
    asked.number,
    pg_try_advisory_xact_lock(1178944600 + asked.kind, asked.number) as held
from unnest($1::int[], $2::int[]) as asked (kind, number)
