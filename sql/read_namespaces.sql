-- Where namespaces want their tasks to run, and whether they are paused: $1 names. An unknown one has no row.
select
    namespace.name,
    namespace.placement::text as placement,
    namespace.paused is not null as paused
from fencepost.namespace
where namespace.name = any($1::text[])
