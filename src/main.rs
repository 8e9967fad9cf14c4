//! Parses the command line and returns an exit code.

fn main() {}
