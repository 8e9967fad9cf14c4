//! Who is connected to this replica and what they can take. Memory only: losing it costs time, never a task.

mod liveness;
mod member;
mod roster;
mod session;

pub use liveness::{Answer, Liveness, Silence};
pub use roster::{Fleet, GroupDemand, Placed, Slot, Strength, Unplaced};
pub use session::{Profile, Reply, Session, SessionId};
