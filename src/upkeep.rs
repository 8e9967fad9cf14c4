//! What keeps replicas and tables in order.
//!
//! | loop | runs | does |
//! |---|---|---|
//! | [`heartbeat`] | every beat (3 s) | proves this replica alive, judges the others, takes orders up |
//! | [`chores`] | every beat, on whichever replica wins the tick | re-arms what dead replicas hold, ends what is overdue, fails what nobody serves where that is asked for, ends and mends workflows, makes partitions, says who keeps dead rows, forgets old replicas |
//! | [`orders`] | when something was ordered | takes up what was cancelled, paused and ordered, before the next beat does |
//! | [`redrives`] | when one is due, at least once a beat | moves redrives of dead letters on, batch by batch |
//! | [`keys`] | when one is due, at least once a second | looks at concurrency keys that nobody else is sure to look at |
//! | [`owners`] | after a death, at least once a beat | tells owners of their dead letters: NOTIFY and webhooks |
//! | [`retention`] | every minute, on whichever replica has the lease | drops days of history, removes results, forgets keys and dead letters |
//! | [`ends`] | while somebody waits for the end of a task | tells the others so, and that tasks have ended |
//! | [`listener`] | always, where listening is on | turns notifications into wakes |

pub mod chores;
pub mod ends;
pub mod heartbeat;
pub mod judge;
pub mod keys;
pub mod listener;
pub mod orders;
pub mod owners;
pub mod redrives;
pub mod retention;
mod snapshots;
pub mod unserved;
mod walk;
mod workflows;
