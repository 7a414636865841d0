//! From a hello to a road: the end that was dialled answers, the dialler tries the same-host road
//! and sends which one it is.

use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::Link;
use crate::control::ControlQueue;
use crate::endpoint::context::Context;
use crate::endpoint::greeting::{Greeted, Side, hello_to_member};
use crate::endpoint::hello::{Hello, read_road, write_road};
use crate::endpoint::hub::{Leave, LocalHub};
use crate::event::Road;
use crate::frame::{FrameOutlet, frame_queue};
use crate::local::{Admission, LocalArrival, LocalLane, LocalOffer, dial};

/// A connection whose road is known, and what its lanes need.
pub(super) struct Settled {
    pub(super) link: Arc<Link>,
    pub(super) outlet: FrameOutlet,
    pub(super) sockets: Option<Sockets>,
    /// What comes to our same-host socket by this connection's leave, and the leave.
    pub(super) arrivals: Option<(mpsc::Receiver<LocalArrival>, Admission)>,
}

/// The sockets of the same-host road that last as long as the connection.
pub(super) struct Sockets {
    pub(super) control: UnixStream,
    pub(super) tensor: UnixStream,
}

/// None if the peer went away or made no sense meanwhile.
pub(super) async fn settle(context: &Context, greeted: Greeted) -> Option<Settled> {
    let Greeted { peer, connection, hello, side, mut send, mut receive, .. } = greeted;
    let (sockets, leave) = match side {
        Side::Dialled { leave, .. } => {
            let sockets = dial_sockets(context.hub.as_ref(), hello.offer.as_ref()).await;
            let road = if sockets.is_some() { Road::SameHost } else { Road::Quic };
            write_road(&mut send, road).await.ok()?;
            (sockets, leave)
        }
        Side::Accepted => {
            let mut leave = leave_for(context.hub.as_ref(), &hello, peer.node).await;
            let ours = hello_to_member(context, 0, leave.as_ref());
            ours.write(&mut send).await.ok()?;
            let sockets = match read_road(&mut receive).await.ok()? {
                Road::Quic => None,
                Road::SameHost => Some(await_sockets(leave.as_mut()?).await?),
            };
            (sockets, leave)
        }
    };
    // Both ends have sent all that this stream carries.
    let _ = send.finish();
    let (queue, outlet) = frame_queue(context.limits.frame_queue_max);
    let limits = &context.limits;
    let control =
        ControlQueue::new(limits.control_queue_messages_max, limits.control_queue_bytes_max);
    let road = if sockets.is_some() { Road::SameHost } else { Road::Quic };
    let offer = hello.offer.filter(|_| road == Road::SameHost);
    let link = Arc::new(Link {
        peer,
        versions: hello.versions,
        road,
        connection,
        control,
        frames: queue,
        offer,
    });
    let arrivals = leave.map(|Leave { admission, arrivals }| (arrivals, admission));
    Some(Settled { link, outlet, sockets, arrivals })
}

/// Leave for a dialler whose hello names this host.
async fn leave_for(
    hub: Option<&LocalHub>,
    hello: &Hello,
    node: zbelastic_types::NodeId,
) -> Option<Leave> {
    let hub = hub.filter(|hub| hello.host.as_ref() == Some(hub.host()))?;
    hub.leave(node).await
}

/// The sockets, if the peer is on this host and everything works. Else QUIC serves.
async fn dial_sockets(hub: Option<&LocalHub>, offer: Option<&LocalOffer>) -> Option<Sockets> {
    let (hub, offer) = (hub?, offer?);
    if !offer.may_be_here(hub.host()) {
        return None;
    }
    let control = dial(offer, hub.host(), LocalLane::Control);
    let tensor = dial(offer, hub.host(), LocalLane::Tensor);
    let (control, tensor) = tokio::try_join!(control, tensor).ok()?;
    Some(Sockets { control, tensor })
}

/// Waits for the two sockets that the dialler has announced by its choice of road.
async fn await_sockets(leave: &mut Leave) -> Option<Sockets> {
    let (mut control, mut tensor) = (None, None);
    while control.is_none() || tensor.is_none() {
        let LocalArrival { lane, stream, .. } = leave.arrivals.recv().await?;
        match lane {
            LocalLane::Control => control = Some(stream),
            LocalLane::Tensor => tensor = Some(stream),
            // Bodies are not requested before the road is known.
            LocalLane::Bulk => drop(stream),
        }
    }
    Some(Sockets { control: control?, tensor: tensor? })
}
