insert into fencepost.migration (version, description, success, checksum, execution_time)
values (:version, ':description', true, '\x:checksum', -1);
