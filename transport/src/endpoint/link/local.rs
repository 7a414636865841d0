//! The lanes of the same-host road.

use std::sync::Arc;

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::receive::{receive_control, receive_frames, serve_bulk};
use super::settle::Sockets;
use super::{LaneEnd, Link};
use crate::control::write_all_sizes;
use crate::endpoint::close::CloseCode;
use crate::endpoint::context::Context;
use crate::event::{Road, Violation};
use crate::frame::FrameOutlet;
use crate::local::{Admission, LocalArrival, LocalLane};
use crate::peers::{MessageKind, may};

/// Bulk connections of one peer at once. More are closed.
const BULK_SOCKETS_MAX: usize = 32;

/// Starts the lanes that have a socket each.
pub(super) fn carry_sockets(
    context: &Arc<Context>,
    link: &Arc<Link>,
    sockets: Sockets,
    outlet: FrameOutlet,
    lanes: &mut JoinSet<LaneEnd>,
) {
    let (receive, send) = sockets.control.into_split();
    lanes.spawn(send_control(Arc::clone(context), Arc::clone(link), send));
    lanes.spawn(take_control(Arc::clone(context), Arc::clone(link), receive));
    let (receive, send) = sockets.tensor.into_split();
    lanes.spawn(send_frames(Arc::clone(context), Arc::clone(link), outlet, send));
    lanes.spawn(take_frames(Arc::clone(context), Arc::clone(link), receive));
}

async fn send_control(
    context: Arc<Context>,
    link: Arc<Link>,
    mut stream: OwnedWriteHalf,
) -> LaneEnd {
    let count = |units, bytes| context.tallies.control.sent(Road::SameHost, units, bytes);
    tokio::select! {
        _ = write_all_sizes(&link.control, &mut stream, count) => LaneEnd::SocketGone,
        end = keep_until_end(&link) => end,
    }
}

/// Once the connection is closed nothing is written, but the sockets stay: their end would mean that
/// this process is dead. The tasks are ended from outside.
async fn keep_until_end(link: &Link) -> LaneEnd {
    link.connection.closed().await;
    std::future::pending().await
}

async fn take_control(context: Arc<Context>, link: Arc<Link>, stream: OwnedReadHalf) -> LaneEnd {
    receive_control(&context, &link, Road::SameHost, stream).await
}

async fn send_frames(
    context: Arc<Context>,
    link: Arc<Link>,
    mut outlet: FrameOutlet,
    mut stream: OwnedWriteHalf,
) -> LaneEnd {
    if !may(context.own.role, MessageKind::Tensor) {
        drop(outlet);
        return keep_until_end(&link).await;
    }
    let count = |bytes| context.tallies.frames.sent(Road::SameHost, 1, bytes);
    tokio::select! {
        _ = outlet.write_to(&mut stream, count) => LaneEnd::SocketGone,
        end = keep_until_end(&link) => end,
    }
}

async fn take_frames(context: Arc<Context>, link: Arc<Link>, stream: OwnedReadHalf) -> LaneEnd {
    if !may(link.peer.role, MessageKind::Tensor) {
        return refuse_bytes(stream).await;
    }
    receive_frames(&context, &link, Road::SameHost, stream).await
}

/// Waits for the end of a socket on which nothing may come.
async fn refuse_bytes(stream: OwnedReadHalf) -> LaneEnd {
    let mut byte = [0];
    let mut stream = stream;
    match tokio::io::AsyncReadExt::read(&mut stream, &mut byte).await {
        Ok(0) | Err(_) => LaneEnd::SocketGone,
        Ok(_) => LaneEnd::Violation(Violation::Other(CloseCode::Forbidden)),
    }
}

/// Serves the connections that come by this connection's leave, which is held as long.
pub(super) async fn serve_arrivals(
    context: Arc<Context>,
    link: Arc<Link>,
    mut arrivals: mpsc::Receiver<LocalArrival>,
    leave: Admission,
) -> LaneEnd {
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            arrival = arrivals.recv() => {
                let Some(arrival) = arrival else { break };
                let is_welcome = arrival.lane == LocalLane::Bulk
                    && streams.len() < BULK_SOCKETS_MAX
                    && may(link.peer.role, MessageKind::Bulk);
                if is_welcome {
                    streams.spawn(serve_one(Arc::clone(&context), Arc::clone(&link), arrival));
                }
            }
            Some(Ok(LaneEnd::Violation(violation))) = streams.join_next() => {
                return LaneEnd::Violation(violation);
            }
        }
    }
    drop(leave);
    LaneEnd::Over
}

async fn serve_one(context: Arc<Context>, link: Arc<Link>, arrival: LocalArrival) -> LaneEnd {
    let (receive, send) = arrival.stream.into_split();
    serve_bulk(&context, link.peer, Road::SameHost, receive, send).await
}
