//! The peers of this process: who is wanted, who is there, who may send what.

mod roles;

pub use roles::{ControlKind, MessageKind, may};
