//! The command line: one module a command.

pub mod worker;
