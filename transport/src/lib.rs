//! Bytes between nodes that know each other.

pub mod identity;
