//! What the tests share.

mod eventually;
pub mod scripted_dispatcher;

pub use eventually::eventually;
