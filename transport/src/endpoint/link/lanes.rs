//! The tasks of a connection: which lanes there are on which path.

use std::sync::Arc;

use quinn::{SendStream, VarInt, WriteError};
use tokio::task::JoinSet;

use super::LaneEnd;
use super::establish::EstablishedLink;
use super::local::{carry_sockets, serve_arrivals};
use super::streams::{CONTROL_STREAM, LONG_STREAM, TENSOR_STREAM, accept_one_way, accept_two_way};
use crate::control::{write_long, write_short};
use crate::endpoint::context::TransportContext;
use crate::event::TransportPath;
use crate::frame::FrameOutlet;
use crate::peers::{ControlKind, MessageKind, PeerLink, may_send};

/// How often a control stream that broke is opened again on one connection.
const CONTROL_REOPENS_MAX: u32 = 16;
/// Short control messages go before everything else that waits.
const CONTROL_PRIORITY: i32 = 2;
/// Long ones go behind frames.
const LONG_PRIORITY: i32 = -1;

/// Starts the lanes of a connection.
pub(super) fn spawn(
    context: &Arc<TransportContext>,
    established: EstablishedLink,
) -> JoinSet<LaneEnd> {
    let EstablishedLink { link, outlet, sockets, arrivals } = established;
    let mut lanes = JoinSet::new();
    let both = || (Arc::clone(context), Arc::clone(&link));
    let (shared, own) = both();
    lanes.spawn(accept_one_way(shared, own));
    let (shared, own) = both();
    lanes.spawn(accept_two_way(shared, own.connection.clone(), own.peer, Some(own.path)));
    if let Some((arrivals, admission)) = arrivals {
        let (shared, own) = both();
        lanes.spawn(serve_arrivals(shared, own, arrivals, admission));
    }
    if let Some(sockets) = sockets {
        carry_sockets(context, &link, sockets, outlet, &mut lanes);
        return lanes;
    }
    let (shared, own) = both();
    lanes.spawn(send_short(shared, own));
    let (shared, own) = both();
    lanes.spawn(send_long(shared, own));
    if may_send(context.own.role, MessageKind::Tensor) {
        let (shared, own) = both();
        lanes.spawn(send_frames(shared, own, outlet));
    }
    lanes
}

/// Whether this process sends control messages at all.
fn has_control(context: &TransportContext) -> bool {
    may_send(context.own.role, MessageKind::Control(ControlKind::Member))
}

async fn open(link: &PeerLink, tag: u8, priority: i32) -> Result<SendStream, WriteError> {
    let mut stream = link.connection.open_uni().await?;
    stream.set_priority(priority)?;
    stream.write_all(&[tag]).await?;
    Ok(stream)
}

async fn send_short(context: Arc<TransportContext>, link: Arc<PeerLink>) -> LaneEnd {
    for _ in 0..=CONTROL_REOPENS_MAX {
        if !has_control(&context) {
            break;
        }
        let Ok(mut stream) = open(&link, CONTROL_STREAM, CONTROL_PRIORITY).await else {
            break;
        };
        let count = |units, bytes| context.counters.control.sent(TransportPath::Quic, units, bytes);
        // It returns only when the stream breaks; the frames in it are lost, as this lane may.
        let _ = write_short(&link.control, &mut stream, count).await;
    }
    LaneEnd::Over
}

async fn send_long(context: Arc<TransportContext>, link: Arc<PeerLink>) -> LaneEnd {
    for _ in 0..=CONTROL_REOPENS_MAX {
        if !has_control(&context) {
            break;
        }
        let Ok(mut stream) = open(&link, LONG_STREAM, LONG_PRIORITY).await else {
            break;
        };
        let count = |units, bytes| context.counters.control.sent(TransportPath::Quic, units, bytes);
        let _ = write_long(&link.control, &mut stream, count).await;
    }
    LaneEnd::Over
}

async fn send_frames(
    context: Arc<TransportContext>,
    link: Arc<PeerLink>,
    mut outlet: FrameOutlet,
) -> LaneEnd {
    let Ok(mut stream) = open(&link, TENSOR_STREAM, 0).await else {
        return LaneEnd::Over;
    };
    let count = |bytes| context.counters.frames.sent(TransportPath::Quic, 1, bytes);
    let written = outlet.write_to(&mut stream, count).await;
    if written.is_err() && link.connection.close_reason().is_none() {
        // A frame is lost and the peer waits for it: better a connection that is seen to break.
        link.connection.close(VarInt::from_u32(0), &[]);
    }
    LaneEnd::Over
}
