-- Ends a webhook event: $1 event, $2 letter, $3 whether its owner took it, $4 whether the owner judges the letter,
-- $5 why it was given up. Taken is taken, whichever try it was.
with ended as (
    delete from fencepost.dead_letter_event as event
    where event.event_id = $1::bigint
)

update fencepost.dead_letter
set
    judged = dead_letter.judged or $4::boolean,
    told_at = case when $3::boolean then statement_timestamp() else dead_letter.told_at end,
    tell_error = case when $3::boolean then null else left($5::text, 1000) end
where id = $2::bigint
