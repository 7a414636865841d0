//! Bytes between nodes that know each other.

pub mod bulk;
pub mod frame;
pub mod local;
