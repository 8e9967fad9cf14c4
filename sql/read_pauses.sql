-- All pauses, the widest first.
select
    nullif(pause.namespace, '') as namespace,
    nullif(pause.task_queue, '') as task_queue,
    nullif(pause.task_type, '') as task_type,
    nullif(pause.node, '') as node,
    pause.reason,
    pause.paused_by,
    pause.paused_at,
    pause.cancel_running
from fencepost.pause
order by
    (pause.namespace <> '')::int + (pause.task_queue <> '')::int + (pause.task_type <> '')::int
    + (pause.node <> '')::int,
    pause.namespace,
    pause.task_queue,
    pause.task_type,
    pause.node
