-- Takes or renews a chore's lease: $1 its name, $2 dispatcher, $3 milliseconds. No row: another replica has it.
insert into fencepost.lease (name, dispatcher, until)
values ($1::text, $2::bigint, statement_timestamp() + $3::bigint * interval '1 millisecond')
on conflict (name) do update
    set dispatcher = excluded.dispatcher, until = excluded.until
    where
    lease.until < statement_timestamp()
    -- longer than anybody gets: the clock has stepped back since
    or lease.until > excluded.until
    or lease.dispatcher = excluded.dispatcher
returning lease.until
