-- Deletes replicas that died over an hour ago and own nothing any more.
delete from fencepost.dispatcher
where
    dispatcher.dead_at < statement_timestamp() - interval '1 hour'
    and not exists (
        select from fencepost.live
        where live.dispatcher = dispatcher.id
    )
