//! What keeps replicas and tables in order.
//!
//! | loop | runs | does |
//! |---|---|---|
//! | [`heartbeat`] | every beat (3 s) | proves this replica alive, judges the others, takes orders up |
//! | [`chores`] | every beat, on whichever replica wins the tick | re-arms what dead replicas hold, ends what is overdue, fails what nobody serves where that is asked for, makes partitions, forgets old replicas |
//! | [`listener`] | always, where listening is on | turns notifications into wakes |

pub mod chores;
pub mod heartbeat;
pub mod judge;
pub mod listener;
pub mod unserved;
