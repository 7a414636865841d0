//! A connection to a member, as senders see it.

use quinn::Connection;
use zbelastic_identity::PeerIdentity;

use crate::control::ControlQueue;
use crate::event::TransportPath;
use crate::frame::FrameQueue;
use crate::local::LocalOffer;
use crate::version::VersionRange;

/// A connection to a member, with lanes that work. Senders enqueue here.
#[derive(Debug)]
pub(crate) struct PeerLink {
    pub(crate) peer: PeerIdentity,
    pub(crate) versions: VersionRange,
    pub(crate) path: TransportPath,
    pub(crate) connection: Connection,
    pub(crate) control: ControlQueue,
    pub(crate) frames: FrameQueue,
    /// Admission to the peer's same-host socket, for the Bulk lane.
    pub(crate) offer: Option<LocalOffer>,
}
