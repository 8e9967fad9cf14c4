-- Starts a replica's life: $1 its name, $2 its version. Every start gets a new id, whatever its name.
insert into fencepost.dispatcher (name, version)
values ($1::text, $2::text)
returning dispatcher.id
