-- The whole schema of fencepost in one script; `fencepost migrate` does the same, and knows what it finds
-- here as done. A script like this is for databases that only their keepers may change: psql -f FILE.
\set ON_ERROR_STOP on

create schema if not exists fencepost;

create table if not exists fencepost.migration (
    version bigint primary key,
    description text not null,
    installed_on timestamptz not null default now(),
    success boolean not null,
    checksum bytea not null,
    execution_time bigint not null
);
