-- Where namespaces want their tasks to run: $1 names. An unknown one has no row.
select
    namespace.name,
    namespace.placement::text as placement
from fencepost.namespace
where namespace.name = any($1::text[])
