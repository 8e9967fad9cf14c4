-- What the doors other than SQL bring as text, read into PostgreSQL's types. A text that cannot be read is
-- refused as a value out of bounds is, with the same code and field.

set local lock_timeout = '5s';

-- RFC 3339 only: PostgreSQL's own reading would depend on the session's time zone and date style.
create function fencepost.read_times(given text[], field text) returns timestamptz[]
language plpgsql stable strict
as $$
declare
    pattern text := '^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})$';
    times timestamptz[] := array_fill(null::timestamptz, array[cardinality(given)]);
    item record;
begin
    for item in
        select input.value, input.ordinal
        from unnest(given) with ordinality as input (value, ordinal)
        where input.value is not null
    loop
        if item.value !~ pattern then
            raise datetime_field_overflow;
        end if;
        times[item.ordinal] := item.value::timestamptz;
    end loop;
    return times;
exception
    when data_exception then
        perform fencepost.refuse(
            'FP005', 'invalid_delay', field,
            fencepost.place(item.ordinal, cardinality(given))
            || field || ' must be a time such as 2030-01-31T08:00:00Z (RFC 3339).'
        );
        raise;
end
$$;

-- JSON objects as the bytes that came in. `code` and `slug` are those of the field's own rule.
create function fencepost.read_objects(given bytea[], code text, slug text, field text) returns jsonb[]
language plpgsql stable strict
as $$
declare
    objects jsonb[] := array_fill(null::jsonb, array[cardinality(given)]);
    item record;
begin
    for item in
        select input.value, input.ordinal
        from unnest(given) with ordinality as input (value, ordinal)
        where input.value is not null
    loop
        objects[item.ordinal] := convert_from(item.value, 'UTF8')::jsonb;
    end loop;
    return objects;
exception
    when data_exception or program_limit_exceeded then
        perform fencepost.refuse(
            code, slug, field,
            fencepost.place(item.ordinal, cardinality(given))
            || field || ' is not JSON that PostgreSQL can store: ' || sqlerrm || '.'
        );
        raise;
end
$$;

-- Durations in milliseconds. Beyond every bound of theirs they are cut, so that none is too long for an
-- interval before its own rule has refused it.
create function fencepost.read_milliseconds(given bigint[]) returns interval[]
language sql immutable parallel safe
as $$
select
    array_agg(
        case
            when input.ms is not null
                then least(greatest(input.ms, -1), 1000000000000000) * interval '1 millisecond'
        end
        order by input.ordinal
    )
from unnest(given) with ordinality as input (ms, ordinal)
$$;

-- The way back: RFC 3339, in UTC, whatever the session's time zone is.
create function fencepost.rfc3339(at timestamptz) returns text
language sql stable parallel safe
as $$ select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;
