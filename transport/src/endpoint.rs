//! The endpoint: the one UDP socket of a process, and the handle the node holds.
//!
//! ```text
//!   accept (others' handshakes) --+                     +-- one task a connection: run_link
//!                                 +--> PeerSupervisor ---+      and one for each of its lanes
//!   dialler (our handshakes)   --+                     +-- events to the node, in order
//! ```

mod accept;
mod bind;
mod bulk_path;
mod client;
mod connection_id;
mod context;
mod counters;
mod greeting;
mod hello;
mod hub;
mod join;
mod link;
mod live_counters;
mod local_requests;
mod setup;
mod socket;
mod supervisor;
mod transport;
mod tuning;

pub use client::{AdminClient, ConnectAttempt, ConnectError};
pub use counters::{
    AcceptCounters, ControlCounters, LaneCounters, RequestCounters, TransportCounters,
};
pub use hello::{HelloFault, PeerHello};
pub use setup::{BindError, TransportSetup};
pub use transport::{BulkSource, FrameSender, FrameSink, SendOutcome, Transport};
