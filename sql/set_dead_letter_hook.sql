-- Sets whom a namespace tells of its dead letters: $1 namespace, $2 webhook (empty ends it), $3 its secret, $4 whether
-- to NOTIFY. null keeps what is there.
select
    fencepost.set_dead_letter_hook(
        namespace => $1::text,
        webhook => $2::text,
        secret => $3::text,
        notify => $4::boolean
    )
