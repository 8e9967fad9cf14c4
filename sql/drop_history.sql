-- Drops a partition that has been detached: $1 its former parent, $2 its name. False: it is kept after all.
select fencepost.drop_history($1::text, $2::text) as dropped
