//! One connection to a member, from its hello to its end.
//!
//! ```text
//!   run_link --establish--> path known --> Up --> lanes work --> closed --> Down
//! ```
//!
//! Each lane is a task of its own. When the connection closes, or one lane finds a reason to close
//! it, all of them end before `Down` is reported.

mod client;
mod establish;
mod lanes;
mod local;
mod receive;
mod requests;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, ConnectionError};
use tokio::task::JoinSet;
use tokio::time::timeout;
use zbelastic_types::NodeId;

pub(crate) use client::run_client;
pub(super) use streams::BULK_STREAM;

use super::context::TransportContext;
use super::greeting::{ConnectionCloser, PeerConnection};
use crate::close_code::CloseCode;
use crate::event::{DownReason, PeerViolation, TransportEvent, TransportPath};

/// How long the same-host sockets stay open after this side closed, so that the peer learns of the
/// close before their end: else it would report that this process ended. It closes its ends as soon
/// as it knows.
const ORDERLY_CLOSE: Duration = Duration::from_millis(500);

/// The end of a connection: of which node, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkEnd {
    pub(crate) node: NodeId,
    pub(crate) was_up: bool,
    pub(crate) reason: DownReason,
}

/// The reason why a lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneEnd {
    /// Its stream is over. The connection stays until it ends itself.
    Over,
    /// The peer's end of a same-host socket is gone.
    SocketGone,
    /// The peer sent a message or frame that it must not.
    Violation(PeerViolation),
}

/// Carries everything between this process and a member, until the connection ends.
pub(crate) async fn run_link(
    context: Arc<TransportContext>,
    peer_connection: PeerConnection,
) -> LinkEnd {
    let open = context.counters.open.hold();
    let node = peer_connection.peer.node;
    let start = peer_connection.hello.start;
    let closer = peer_connection.closer();
    let connection = peer_connection.connection.clone();
    let within = context.limits.handshake_within;
    let Ok(Some(established)) =
        timeout(within, establish::establish(&context, peer_connection)).await
    else {
        if connection.close_reason().is_none() {
            closer.close(DownReason::Violation(PeerViolation::Other(CloseCode::Late)));
        }
        let reason = closer.reason(&connection.closed().await);
        return LinkEnd { node, was_up: false, reason };
    };
    let link = Arc::clone(&established.link);
    let peer = link.peer;
    let boot = start.boot;
    let versions = link.versions;
    let path = link.path;
    context.events.send(TransportEvent::Up { peer, boot, versions, path }).await;
    let mut lanes = lanes::spawn(&context, established);
    let error = supervise(&context, &closer, &connection, &mut lanes).await;
    context.directory.remove(node);
    if link.path == TransportPath::SameHost && closer.is_ours() {
        // If the peer is stuck, its end of the sockets stays open; then enough was waited.
        let _ = timeout(ORDERLY_CLOSE, until_sockets_gone(&mut lanes)).await;
    }
    lanes.shutdown().await;
    let reason = closer.reason(&error);
    drop(open);
    context.events.send(TransportEvent::Down { peer, reason }).await;
    LinkEnd { node, was_up: true, reason }
}

/// Waits for the end of the connection, and closes it when a lane ends with a reason to.
async fn supervise(
    context: &TransportContext,
    closer: &ConnectionCloser,
    connection: &Connection,
    lanes: &mut JoinSet<LaneEnd>,
) -> ConnectionError {
    loop {
        tokio::select! {
            error = connection.closed() => return error,
            Some(ended) = lanes.join_next() => match ended {
                Ok(LaneEnd::Over) => {}
                Ok(LaneEnd::SocketGone) => closer.close(DownReason::ProcessEnded),
                Ok(LaneEnd::Violation(violation)) => {
                    context.counters.violations.increment();
                    closer.close(DownReason::Violation(violation));
                }
                // Its panic was reported where it happened. The lanes begin anew with a connection.
                Err(_) => closer.close(DownReason::Broken),
            },
        }
    }
}

async fn until_sockets_gone(lanes: &mut JoinSet<LaneEnd>) {
    while let Some(ended) = lanes.join_next().await {
        if matches!(ended, Ok(LaneEnd::SocketGone)) {
            return;
        }
    }
}
