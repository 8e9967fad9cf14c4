//! The one integration binary: real PostgreSQL, real processes, no mocks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and its tasks end with its runtime"
)]
#![allow(
    clippy::too_many_lines,
    clippy::missing_panics_doc,
    unreachable_pub,
    reason = "a scenario reads best in one piece; helpers are seen by this binary alone"
)]

mod architecture;
mod bench;
mod between;
mod cancels;
mod command_line;
mod commands;
mod config;
mod contract;
mod dashboard;
mod dead_letters;
mod dedupe;
mod demo;
mod direct;
mod documents;
mod doors;
mod embedded;
mod foreign_workers;
mod frozen;
mod grpc_door;
mod handover;
mod history;
mod imports;
mod interleavings;
mod interventions;
mod key_rates;
mod key_replicas;
mod keys;
mod lifecycle;
mod metrics;
mod model;
mod operators;
mod outage;
mod owners;
mod pages;
mod pauses;
mod placement;
mod plain_enqueue;
mod plans;
mod producers;
mod producers_meet;
mod quotas;
mod rates;
mod ready_moves;
mod redrives;
mod retention;
mod scenarios;
mod sdk;
mod sdk_command;
mod sessions;
mod statements;
mod store;
mod support;
mod tenants;
mod traces;
mod transitions;
mod tutorial;
mod unserved;
mod waits;
mod watching;
mod watching_plans;
mod websocket;
mod why;
mod workflow_doors;
mod workflow_replicas;
mod workflow_retention;
mod workflows;
