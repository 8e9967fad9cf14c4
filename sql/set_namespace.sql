-- Sets what is given of a namespace: $1 name, $2 placement as JSON, $3 whether it takes tasks for declared queues
-- only, $4 weight, $5 quota (-1 lifts it). null keeps what is there.
select
    fencepost.set_namespace(
        name => $1::text,
        placement => (fencepost.read_objects(array[$2::bytea], 'FP017', 'invalid_placement', 'placement'))[1],
        require_declared_queues => $3::boolean,
        weight => $4::int,
        max_in_flight => $5::int
    )
