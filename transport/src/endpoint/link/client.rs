//! A connection of a command line, of a person or in a member's folder: it sends requests, and nothing else.

use std::sync::Arc;

use tokio::time::timeout;

use super::LaneEnd;
use super::streams::accept_two_way;
use crate::close_code::CloseCode;
use crate::endpoint::context::TransportContext;
use crate::endpoint::greeting::PeerConnection;
use crate::endpoint::hello::PeerHello;
use crate::event::{DownReason, PeerViolation};
use crate::version::VERSIONS;

/// Answers a client until its connection ends.
pub(crate) async fn run_client(context: Arc<TransportContext>, peer_connection: PeerConnection) {
    let open = context.counters.open.hold();
    let closer = peer_connection.closer();
    let PeerConnection { peer, connection, mut send, .. } = peer_connection;
    let ours = PeerHello { start: context.start, ..PeerHello::anonymous(VERSIONS) };
    let written = timeout(context.limits.handshake_within, ours.write(&mut send)).await;
    if !matches!(written, Ok(Ok(()))) {
        closer.close(DownReason::Violation(PeerViolation::Other(CloseCode::Late)));
        return;
    }
    let _ = send.finish();
    let end = accept_two_way(Arc::clone(&context), connection, peer, None).await;
    if let LaneEnd::Violation(violation) = end {
        context.counters.violations.increment();
        closer.close(DownReason::Violation(violation));
    }
    drop(open);
}
