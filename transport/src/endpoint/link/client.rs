//! A connection of a command line, of a person or in a member's folder: it sends requests, and nothing else.

use std::sync::Arc;

use tokio::time::timeout;

use super::LaneEnd;
use super::establish::admission_for;
use super::local::serve_sockets;
use super::requests::serve_request_socket;
use super::streams::accept_two_way;
use crate::close_code::CloseCode;
use crate::endpoint::context::TransportContext;
use crate::endpoint::greeting::PeerConnection;
use crate::endpoint::hello::PeerHello;
use crate::endpoint::hub::AdmissionHandle;
use crate::event::{DownReason, PeerViolation};
use crate::local::LocalLane;
use crate::version::VERSIONS;

/// Answers a client until its connection ends.
pub(crate) async fn run_client(context: Arc<TransportContext>, peer_connection: PeerConnection) {
    let open = context.counters.open.hold();
    let closer = peer_connection.closer();
    let PeerConnection { peer, connection, hello, mut send, .. } = peer_connection;
    let admission = admission_for(context.local_hub.as_ref(), &hello, peer.node).await;
    let offer = admission.as_ref().map(|admission| admission.admission.offer().clone());
    let ours = PeerHello { start: context.start, offer, ..PeerHello::anonymous(VERSIONS) };
    let written = timeout(context.limits.handshake_within, ours.write(&mut send)).await;
    if !matches!(written, Ok(Ok(()))) {
        closer.close(DownReason::Violation(PeerViolation::Other(CloseCode::Late)));
        return;
    }
    let _ = send.finish();
    let streams = accept_two_way(Arc::clone(&context), connection, peer, None);
    let end = match admission {
        // Held as long as the connection, so that the secret is worth nothing afterwards.
        Some(AdmissionHandle { admission: _admission, arrivals }) => {
            let serve = |socket| serve_request_socket(Arc::clone(&context), peer, socket);
            tokio::select! {
                end = streams => end,
                end = serve_sockets(arrivals, Some(LocalLane::Request), serve) => end,
            }
        }
        None => streams.await,
    };
    if let LaneEnd::Violation(violation) = end {
        context.counters.violations.increment();
        closer.close(DownReason::Violation(violation));
    }
    drop(open);
}
