//! Bytes between nodes that know each other.
