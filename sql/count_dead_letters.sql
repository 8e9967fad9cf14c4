-- Counts the dead letters that a filter takes: $1 filter (the bytes of a JSON object), $2 whether it may take all.
select
    fencepost.count_dead_letters(
        filter => (fencepost.read_objects(array[$1::bytea], 'FP040', 'invalid_filter', 'filter'))[1],
        all_letters => $2::boolean
    ) as letters
