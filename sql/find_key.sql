-- The task that a dispatch key names: $1 namespace, $2 key.
select dispatch_key.task_id
from fencepost.dispatch_key
inner join fencepost.namespace on namespace.namespace_id = dispatch_key.namespace_id
where namespace.name = $1::text and dispatch_key.key = $2::text
