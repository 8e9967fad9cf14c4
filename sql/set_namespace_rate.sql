-- Sets how many tasks of a namespace may start in a time: $1 name, $2 rate (none lifts it), $3 burst. null keeps what
-- is there.
select
    fencepost.set_namespace_rate(
        name => $1::text,
        rate => $2::text,
        burst => $3::int
    )
