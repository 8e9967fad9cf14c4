//! What the tests share.

mod eventually;

pub use eventually::eventually;
