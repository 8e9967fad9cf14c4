//! A private PostgreSQL server from the machine's own binaries.
