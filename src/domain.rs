//! Pure values and decisions: no I/O, no async, no clock.
