//! From a hello to a path: the end that was dialled answers, the dialler tries the same-host path
//! and sends which one it is.

use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::control::ControlQueue;
use crate::endpoint::context::TransportContext;
use crate::endpoint::greeting::{DialSide, PeerConnection, hello_to_member};
use crate::endpoint::hello::{PeerHello, read_path, write_path};
use crate::endpoint::hub::{AdmissionHandle, LocalHub};
use crate::event::TransportPath;
use crate::frame::FrameOutlet;
use crate::local::{LocalAdmission, LocalArrival, LocalLane, LocalOffer, dial};
use crate::peers::PeerLink;

/// A connection with a known path, which the directory has, and the inputs of its lanes.
pub(super) struct EstablishedLink {
    pub(super) link: Arc<PeerLink>,
    pub(super) outlet: FrameOutlet,
    pub(super) sockets: Option<LocalSockets>,
    /// The connections to our same-host socket by this connection's admission, and the admission.
    pub(super) arrivals: Option<(mpsc::Receiver<LocalArrival>, LocalAdmission)>,
}

/// The sockets of the same-host path that last as long as the connection.
pub(super) struct LocalSockets {
    pub(super) control: UnixStream,
    pub(super) tensor: UnixStream,
}

/// None if the peer went away or sent malformed bytes meanwhile.
pub(super) async fn establish(
    context: &TransportContext,
    peer_connection: PeerConnection,
) -> Option<EstablishedLink> {
    let PeerConnection { peer, connection, hello, side, mut send, mut receive, .. } =
        peer_connection;
    let (sockets, admission) = match side {
        DialSide::Dialled { admission, .. } => {
            let sockets = dial_sockets(context.local_hub.as_ref(), hello.offer.as_ref()).await;
            let path =
                if sockets.is_some() { TransportPath::SameHost } else { TransportPath::Quic };
            write_path(&mut send, path).await.ok()?;
            (sockets, admission)
        }
        DialSide::Accepted => {
            let mut admission = admission_for(context.local_hub.as_ref(), &hello, peer.node).await;
            let ours = hello_to_member(context, 0, admission.as_ref());
            ours.write(&mut send).await.ok()?;
            let sockets = match read_path(&mut receive).await.ok()? {
                TransportPath::Quic => None,
                TransportPath::SameHost => Some(await_sockets(admission.as_mut()?).await?),
            };
            (sockets, admission)
        }
    };
    // Both ends have sent all that this stream carries.
    let _ = send.finish();
    let limits = &context.limits;
    let control =
        ControlQueue::new(limits.control_queue_messages_max, limits.control_queue_bytes_max);
    let path = if sockets.is_some() { TransportPath::SameHost } else { TransportPath::Quic };
    let offer = hello.offer.filter(|_| path == TransportPath::SameHost);
    let versions = hello.versions;
    let (link, outlet) = context.directory.insert(peer.node, |frames| PeerLink {
        peer,
        versions,
        path,
        connection,
        control,
        frames,
        offer,
    });
    let arrivals = admission.map(|AdmissionHandle { admission, arrivals }| (arrivals, admission));
    Some(EstablishedLink { link, outlet, sockets, arrivals })
}

/// The admission for a dialler with a hello that names this host.
pub(super) async fn admission_for(
    hub: Option<&LocalHub>,
    hello: &PeerHello,
    node: zbelastic_types::NodeId,
) -> Option<AdmissionHandle> {
    let hub = hub.filter(|hub| hello.host.as_ref() == Some(hub.host()))?;
    hub.admit(node).await
}

/// The sockets, if the peer is on this host and everything works. Else QUIC serves.
async fn dial_sockets(hub: Option<&LocalHub>, offer: Option<&LocalOffer>) -> Option<LocalSockets> {
    let hub = hub?;
    let offer = offer?;
    if !offer.is_reachable_from(hub.host()) {
        return None;
    }
    let control = dial(offer, hub.host(), LocalLane::Control);
    let tensor = dial(offer, hub.host(), LocalLane::Tensor);
    let (control, tensor) = tokio::try_join!(control, tensor).ok()?;
    Some(LocalSockets { control, tensor })
}

/// Waits for the two sockets that the dialler has announced by its choice of path.
async fn await_sockets(admission: &mut AdmissionHandle) -> Option<LocalSockets> {
    let mut control = None;
    let mut tensor = None;
    while control.is_none() || tensor.is_none() {
        let LocalArrival { lane, stream, .. } = admission.arrivals.recv().await?;
        match lane {
            LocalLane::Control => control = Some(stream),
            LocalLane::Tensor => tensor = Some(stream),
            // Bodies are not requested before the path is known.
            LocalLane::Bulk | LocalLane::Request => drop(stream),
        }
    }
    Some(LocalSockets { control: control?, tensor: tensor? })
}
