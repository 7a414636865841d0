//! The endpoint: the one UDP socket of a process, and the handle the node holds.

mod client;
mod close;
mod counters;
mod setup;
mod transport;
mod version;

pub use client::{AdminClient, ConnectAttempt, ConnectError, DialProblem};
pub use close::CloseCode;
pub use counters::{ControlCounters, Counters, DoorCounters, LaneCounters, RequestCounters};
pub use setup::{BindError, ProcessStart, TransportSetup};
pub use transport::{BulkSource, FrameSender, FrameSink, SendOutcome, Transport};
pub use version::{VERSIONS, VersionRange};
