//! The lanes of the same-host path.

use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zbelastic_identity::PeerIdentity;

use super::LaneEnd;
use super::establish::LocalSockets;
use super::receive::{receive_control, receive_frames, serve_bulk};
use crate::close_code::CloseCode;
use crate::control::write_all_sizes;
use crate::endpoint::context::TransportContext;
use crate::event::{PeerViolation, TransportPath};
use crate::frame::FrameOutlet;
use crate::local::{LocalAdmission, LocalArrival, LocalLane};
use crate::peers::{MessageKind, PeerLink, may_send};

/// Sockets for bodies, or for requests, of one peer at once. More are closed.
const SOCKETS_MAX: usize = 32;

/// Starts the lanes that have a socket each.
pub(super) fn carry_sockets(
    context: &Arc<TransportContext>,
    link: &Arc<PeerLink>,
    sockets: LocalSockets,
    outlet: FrameOutlet,
    lanes: &mut JoinSet<LaneEnd>,
) {
    let (receive, send) = sockets.control.into_split();
    lanes.spawn(send_control(Arc::clone(context), Arc::clone(link), send));
    lanes.spawn(read_control(Arc::clone(context), Arc::clone(link), receive));
    let (receive, send) = sockets.tensor.into_split();
    lanes.spawn(send_frames(Arc::clone(context), Arc::clone(link), outlet, send));
    lanes.spawn(read_frames(Arc::clone(context), Arc::clone(link), receive));
}

async fn send_control(
    context: Arc<TransportContext>,
    link: Arc<PeerLink>,
    mut stream: OwnedWriteHalf,
) -> LaneEnd {
    let count = |units, bytes| context.counters.control.sent(TransportPath::SameHost, units, bytes);
    tokio::select! {
        _ = write_all_sizes(&link.control, &mut stream, count) => LaneEnd::SocketGone,
        end = keep_until_end(&link) => end,
    }
}

/// Once the connection is closed nothing is written, but the sockets stay: their end would mean
/// that this process is dead. The tasks are ended from outside.
async fn keep_until_end(link: &PeerLink) -> LaneEnd {
    link.connection.closed().await;
    std::future::pending().await
}

async fn read_control(
    context: Arc<TransportContext>,
    link: Arc<PeerLink>,
    stream: OwnedReadHalf,
) -> LaneEnd {
    receive_control(&context, &link, TransportPath::SameHost, stream).await
}

async fn send_frames(
    context: Arc<TransportContext>,
    link: Arc<PeerLink>,
    mut outlet: FrameOutlet,
    mut stream: OwnedWriteHalf,
) -> LaneEnd {
    if !may_send(context.own.role, MessageKind::Tensor) {
        drop(outlet);
        return keep_until_end(&link).await;
    }
    let count = |bytes| context.counters.frames.sent(TransportPath::SameHost, 1, bytes);
    tokio::select! {
        _ = outlet.write_to(&mut stream, count) => LaneEnd::SocketGone,
        end = keep_until_end(&link) => end,
    }
}

async fn read_frames(
    context: Arc<TransportContext>,
    link: Arc<PeerLink>,
    stream: OwnedReadHalf,
) -> LaneEnd {
    if !may_send(link.peer.role, MessageKind::Tensor) {
        return refuse_bytes(stream).await;
    }
    receive_frames(&context, &link, TransportPath::SameHost, stream).await
}

/// Waits for the end of a socket on which nothing may come.
async fn refuse_bytes(stream: OwnedReadHalf) -> LaneEnd {
    let mut byte = [0];
    let mut stream = stream;
    match tokio::io::AsyncReadExt::read(&mut stream, &mut byte).await {
        Ok(0) | Err(_) => LaneEnd::SocketGone,
        Ok(_) => LaneEnd::Violation(PeerViolation::Other(CloseCode::Forbidden)),
    }
}

/// Serves the connections that come by this connection's admission, which is held as long.
pub(super) async fn serve_arrivals(
    context: Arc<TransportContext>,
    link: Arc<PeerLink>,
    arrivals: mpsc::Receiver<LocalArrival>,
    admission: LocalAdmission,
) -> LaneEnd {
    let lane = may_send(link.peer.role, MessageKind::Bulk).then_some(LocalLane::Bulk);
    let peer = link.peer;
    let serve = |socket| serve_bodies(Arc::clone(&context), peer, socket);
    let end = serve_sockets(arrivals, lane, serve).await;
    drop(admission);
    end
}

async fn serve_bodies(
    context: Arc<TransportContext>,
    peer: PeerIdentity,
    socket: UnixStream,
) -> LaneEnd {
    let (receive, send) = socket.into_split();
    serve_bulk(&context, peer, TransportPath::SameHost, receive, send).await
}

/// Serves the sockets that come for a lane, until none can come any more or the peer breaks the
/// rules. Others are closed, and so are more than [`SOCKETS_MAX`] at once.
pub(super) async fn serve_sockets<F>(
    mut arrivals: mpsc::Receiver<LocalArrival>,
    lane: Option<LocalLane>,
    serve: impl Fn(UnixStream) -> F,
) -> LaneEnd
where
    F: Future<Output = LaneEnd> + Send + 'static,
{
    let mut sockets = JoinSet::new();
    loop {
        tokio::select! {
            arrival = arrivals.recv() => {
                let Some(arrival) = arrival else { return LaneEnd::Over };
                if Some(arrival.lane) == lane && sockets.len() < SOCKETS_MAX {
                    sockets.spawn(serve(arrival.stream));
                }
            }
            Some(ended) = sockets.join_next() => {
                if let Ok(end @ LaneEnd::Violation(_)) = ended {
                    return end;
                }
            }
        }
    }
}
