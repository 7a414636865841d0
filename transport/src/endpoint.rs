//! The endpoint: the one UDP socket of a process, and the handle the node holds.
//!
//! ```text
//!   door (handshakes of others) --+                     +-- one task a connection: run_link
//!                                 +--> keeper of peers --+      and one for each of its lanes
//!   dialler (our handshakes)   --+                     +-- events to the node, in order
//! ```

mod bind;
mod bulk_road;
mod client;
mod close;
mod connection_id;
mod context;
mod counters;
mod door;
mod greeting;
mod hello;
mod hub;
mod join;
mod link;
mod problem;
mod setup;
mod socket;
mod tally;
mod transport;
mod tuning;
mod version;

pub(crate) use context::Context;
pub(crate) use greeting::{Closer, DialFailure, Dialler, Greeted};
pub(crate) use link::{Link, LinkEnd, REQUEST_STREAM, run_client, run_link};

pub use client::{AdminClient, ConnectAttempt, ConnectError, DialProblem};
pub use close::CloseCode;
pub use counters::{ControlCounters, Counters, DoorCounters, LaneCounters, RequestCounters};
pub use hello::{Hello, HelloFault};
pub use setup::{BindError, ProcessStart, TransportSetup};
pub use transport::{BulkSource, FrameSender, FrameSink, SendOutcome, Transport};
pub use version::{VERSIONS, VersionRange};
