//! Who is connected to this replica and what they can take. Memory only: losing it costs time, never a task.

mod roster;
mod session;

pub use roster::{Fleet, GroupDemand, Placed, Slot, Unplaced};
pub use session::{Namespaces, Profile, Scope, Session, SessionId};
