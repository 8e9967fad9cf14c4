-- All tables of the model. A task has one narrow row in `live` until it ends, then one in `outcome`.
-- No foreign keys and no triggers: a hot row must not lock a shared parent (multixacts), and the
-- statements that move rows keep the tables in step themselves.

set local lock_timeout = '5s';

create table fencepost.namespace (
    namespace_id int generated always as identity primary key,
    name text not null unique,
    weight int not null default 1 check (weight between 1 and 1000),
    max_in_flight int check (max_in_flight >= 0),
    placement jsonb not null default '{"mode": "anywhere"}',
    require_declared_queues boolean not null default false,
    max_attempts int check (max_attempts between 1 and 1000),
    backoff_base_ms int check (backoff_base_ms >= 0),
    backoff_multiplier double precision check (backoff_multiplier >= 1),
    backoff_max_ms int check (backoff_max_ms >= 0),
    version bigint not null default 1,
    created_at timestamptz not null default clock_timestamp()
);

-- An empty node means none, so that the unique index needs no null rule (PostgreSQL 14 has no such clause).
create table fencepost.route (
    route_id int generated always as identity primary key,
    namespace_id int not null,
    task_queue text not null,
    task_type text not null,
    node text not null default '',
    declared boolean not null default false,
    max_in_flight int check (max_in_flight >= 0),
    max_attempts int check (max_attempts between 1 and 1000),
    backoff_base_ms int check (backoff_base_ms >= 0),
    backoff_multiplier double precision check (backoff_multiplier >= 1),
    backoff_max_ms int check (backoff_max_ms >= 0),
    unserved text not null default 'wait' check (unserved in ('wait', 'strict')),
    version bigint not null default 1,
    created_at timestamptz not null default clock_timestamp(),
    unique (namespace_id, task_queue, task_type, node)
);

-- The body: written once, read at delivery. One partition a day by the time in the id.
create table fencepost.task (
    id bigint not null,
    -- the task that this one is a redrive of, else its own id: handlers' idempotency keys come from it
    origin bigint not null,
    enqueued_at timestamptz not null,
    route_id int not null,
    max_attempts int,
    run_timeout_ms int,
    heartbeat_timeout_ms int,
    schedule_to_start_ms bigint,
    settle_accepted boolean not null default false,
    workflow_id bigint,
    run_id bigint,
    ordinal int,
    content_type text not null,
    dispatch_key text,
    concurrency_key text,
    labels jsonb,
    options jsonb,
    payload bytea not null,
    primary key (id)
) partition by range (id);

-- state: 0 ready, 1 claimed. hold bits: 1 workflow paused, 2 key busy, 4 throttled.
create table fencepost.live (
    id bigint not null primary key,
    visible_after timestamptz not null,
    claimed_at timestamptz,
    deadline timestamptz,
    -- a task that has not started by then ends as a dead letter
    start_by timestamptz,
    dispatcher bigint,
    sweep bigint,
    -- the run of the workflow that the task is a member of
    run_id bigint,
    route_id int not null,
    run_timeout_ms int,
    attempt int not null default 0,
    losses int not null default 0,
    epoch int not null default 0,
    fence int not null default 0,
    state smallint not null default 0,
    hold smallint not null default 0,
    priority smallint not null default 1,
    cancel_requested boolean not null default false
) with (
    -- Rows live for seconds: what vacuum has to do is set by churn, never by the size of the table.
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 5000,
    vacuum_index_cleanup = on,
    -- Truncation takes an exclusive lock that every claim would wait behind.
    vacuum_truncate = off
);

create index live_claim on fencepost.live (route_id, priority, visible_after, id)
where state = 0 and hold = 0;

-- By owner, for those who end what it holds; by route and age behind that, for quotas: what is claimed of a route is
-- one probe a replica, and tasks without a quota pay for no index of their own.
create index live_dispatcher on fencepost.live (dispatcher, route_id, claimed_at)
where dispatcher is not null;

create index live_start_by on fencepost.live (start_by)
where state = 0 and start_by is not null;

-- The unfinished members of a run, those without a hold bit apart. Tasks of no workflow stand outside.
create index live_run on fencepost.live (run_id, hold, id)
where run_id is not null;

-- state: 1 done, 2 failed, 3 cancelled. epoch and fence are null unless a worker's report ended the task.
create table fencepost.outcome (
    id bigint not null,
    ended_at timestamptz not null,
    claimed_at timestamptz,
    attempt int not null,
    epoch int,
    fence int,
    state smallint not null,
    worker text,
    error_class text,
    error_message text,
    result_type text,
    result bytea,
    primary key (id)
) partition by range (id);

create table fencepost.failure (
    id bigint not null,
    failed_at timestamptz not null,
    claimed_at timestamptz,
    attempt int not null,
    epoch int not null,
    fence int not null,
    move text not null,
    worker text,
    node text,
    error_class text not null,
    error_message text
) partition by range (id);

create index failure_id on fencepost.failure (id);

create table fencepost.dead_letter (
    id bigint not null primary key,
    origin bigint not null,
    dead_at timestamptz not null,
    enqueued_at timestamptz not null,
    route_id int not null,
    attempt int not null,
    losses int not null,
    epoch int not null,
    fence int not null,
    priority smallint not null,
    cause text not null,
    error_class text not null,
    error_message text,
    -- the owner has taken the matter up; redriving it needs force
    judged boolean not null default false,
    -- when the owner's webhook took it, or why telling was given up
    told_at timestamptz,
    tell_error text,
    redriven_as bigint,
    max_attempts int,
    run_timeout_ms int,
    heartbeat_timeout_ms int,
    schedule_to_start_ms bigint,
    settle_accepted boolean not null,
    workflow_id bigint,
    run_id bigint,
    ordinal int,
    content_type text not null,
    concurrency_key text,
    labels jsonb,
    options jsonb,
    payload bytea not null
);

create index dead_letter_route on fencepost.dead_letter (route_id, dead_at);

-- A unique index cannot span partitions, so keys stand in a table of their own.
-- `remember` runs from the task's end, which the outcome has: settling never writes here.
create table fencepost.dispatch_key (
    namespace_id int not null,
    key text not null,
    task_id bigint not null,
    remember interval not null,
    primary key (namespace_id, key)
);

-- One row per start of a replica. `sleeping` and `held_back` (by a quota) stand in no index, so that flipping them is a
-- cheap update in place.
create table fencepost.dispatcher (
    id bigint generated always as identity primary key,
    name text not null,
    version text not null,
    beat bigint not null default 0,
    heartbeat_at timestamptz not null default clock_timestamp(),
    started_at timestamptz not null default clock_timestamp(),
    sleeping boolean not null default false,
    -- somebody waits at this replica for the end of a task
    awaiting boolean not null default false,
    held_back boolean not null default false,
    draining boolean not null default false,
    dead_at timestamptz
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0
);

-- What the workers of one scope can take on one replica, written with its beats where it differs. Freshness comes
-- from the replica's own row.
create table fencepost.fleet (
    dispatcher bigint not null,
    slot_group text not null,
    -- null stands for all
    namespaces text[],
    task_queue text not null,
    task_types text[] not null,
    node text not null,
    workers int not null,
    unreachable int not null,
    slots int not null,
    free int not null,
    -- of the largest frame that one of them takes, 0 where none is connected so: frames in JSON are larger
    grpc_frame_bytes bigint not null,
    websocket_frame_bytes bigint not null,
    primary key (dispatcher, slot_group)
);

create table fencepost.worker (
    worker_id text not null primary key,
    dispatcher bigint not null,
    identity text not null,
    node text not null,
    task_queue text not null,
    build_id text not null,
    transport text not null,
    state text not null,
    slots int not null,
    busy int not null,
    -- cancelled tasks among the busy ones that have not stopped within their grace
    stuck int not null default 0,
    connected_at timestamptz not null default clock_timestamp()
);

create index worker_dispatcher on fencepost.worker (dispatcher);

-- The nodes that workers have been on, with the last sight of each to a minute: a task pinned to one that is away
-- waits for something else than one pinned to a name that nobody has ever had.
create table fencepost.node (
    name text not null primary key,
    seen_at timestamptz not null
);

-- What operators ordered for a worker, by its identity, so that it holds over reconnects.
create table fencepost.worker_order (
    identity text not null primary key,
    action text not null check (action in ('drain', 'cordon')),
    ordered_by text not null default '',
    reason text not null default '',
    ordered_at timestamptz not null default clock_timestamp()
);

-- Routes with due work that nobody serves, kept by the chore that judges it.
create table fencepost.unserved (
    route_id int not null primary key,
    reason text not null,
    since timestamptz not null
);

-- One row a run. A run ends once; a workflow has a further run for each re-run. Run ids are unique over all workflows,
-- so that one number in `live` says where a task belongs.
create table fencepost.workflow (
    run_id bigint not null primary key,
    workflow_id bigint not null,
    run_number int not null default 1,
    namespace_id int not null,
    name text not null default '',
    mode text not null check (mode in ('all', 'race', 'fail_fast')),
    state text not null default 'running' check (state in ('running', 'done', 'failed', 'cancelled')),
    -- who paused it, when and why
    paused jsonb,
    -- true once it has ended and no member is unfinished: then nobody has to look at it again
    settled boolean not null default false,
    -- retention is taking it away, batch by batch: nobody is to see what is left of it
    forgotten boolean not null default false,
    continuation jsonb,
    continued_as bigint,
    created_at timestamptz not null default clock_timestamp(),
    ended_at timestamptz
);

create unique index workflow_number on fencepost.workflow (workflow_id, run_number);

create index workflow_unsettled on fencepost.workflow (run_id)
where not settled;

create index workflow_ended on fencepost.workflow (ended_at)
where settled;

-- The caller's idempotency keys, kept as long as the workflow.
create table fencepost.workflow_key (
    namespace_id int not null,
    key text not null,
    workflow_id bigint not null,
    primary key (namespace_id, key)
);

create index workflow_key_workflow on fencepost.workflow_key (workflow_id);

-- The task that stands for a member now. The priority is here for re-runs: no other row keeps it for long.
create table fencepost.workflow_member (
    run_id bigint not null,
    ordinal int not null,
    task_id bigint not null,
    priority smallint not null,
    primary key (run_id, ordinal)
);

-- What happened to a run, only ever added to. A member's end is written by the statement that ends it. `decides` marks
-- the end of a member that ends its run whatever the others do.
create table fencepost.workflow_event (
    run_id bigint not null,
    event_id bigint generated always as identity,
    kind text not null,
    task_id bigint,
    decides boolean not null default false,
    detail jsonb,
    recorded_at timestamptz not null default clock_timestamp(),
    primary key (run_id, event_id)
);

create index workflow_event_decides on fencepost.workflow_event (run_id)
where decides;

-- A second end of a run is impossible.
create unique index workflow_event_end on fencepost.workflow_event (run_id)
where kind = 'ended';

-- Limits that every door checks, so they stand where every door looks. One row.
create table fencepost.limits (
    only_row boolean primary key default true check (only_row),
    payload_bytes int not null default 1048576 check (payload_bytes between 1 and 67108864),
    result_bytes int not null default 1048576 check (result_bytes between 1 and 67108864),
    -- how long dispatch keys of new tasks are remembered once the task has ended
    remember interval not null default '1 day' check (remember between '0' and '3650 days')
);

insert into fencepost.limits default values;
