-- Removes full buckets of concurrency keys, at most $1: no row says the same. One that is locked is about to be
-- written.
delete from fencepost.key_bucket
where
    key_bucket.ctid = any(
        array(
            select expired.ctid
            from fencepost.key_bucket as expired
            where expired.full_at < statement_timestamp()
            limit $1::int
            for update skip locked
        )
    )
