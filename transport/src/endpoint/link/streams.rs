//! Streams over QUIC, each identified by its first byte.

use std::sync::Arc;

use quinn::{Connection, RecvStream, SendStream};
use tokio::task::JoinSet;
use zbelastic_identity::PeerIdentity;

use super::LaneEnd;
use super::receive::{receive_control, receive_frames, serve_bulk};
use super::requests::serve_request;
use crate::close_code::CloseCode;
use crate::endpoint::context::TransportContext;
use crate::event::{PeerViolation, TransportPath};
use crate::peers::{ControlKind, MessageKind, PeerLink, may_send};
use crate::request::REQUEST_STREAM;

/// Short control messages, one way.
pub(super) const CONTROL_STREAM: u8 = 0x10;
/// Long control messages, one way.
pub(super) const LONG_STREAM: u8 = 0x11;
/// Type byte of a stream of frames, one way.
pub(super) const TENSOR_STREAM: u8 = 0x12;
/// Requests for bodies, both ways.
pub(in crate::endpoint) const BULK_STREAM: u8 = 0x21;

/// Accepts streams that come one way, until the connection ends or one of them breaks the rules.
pub(super) async fn accept_one_way(context: Arc<TransportContext>, link: Arc<PeerLink>) -> LaneEnd {
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            stream = link.connection.accept_uni() => {
                let Ok(stream) = stream else { return LaneEnd::Over };
                streams.spawn(handle_one_way(Arc::clone(&context), Arc::clone(&link), stream));
            }
            Some(Ok(LaneEnd::Violation(violation))) = streams.join_next() => {
                return LaneEnd::Violation(violation);
            }
        }
    }
}

async fn handle_one_way(
    context: Arc<TransportContext>,
    link: Arc<PeerLink>,
    mut stream: RecvStream,
) -> LaneEnd {
    let mut tag = [0];
    if stream.read_exact(&mut tag).await.is_err() {
        return LaneEnd::Over;
    }
    let role = link.peer.role;
    let kind = match tag {
        [CONTROL_STREAM | LONG_STREAM] => MessageKind::Control(ControlKind::Member),
        [TENSOR_STREAM] => MessageKind::Tensor,
        [_] => return LaneEnd::Violation(PeerViolation::Other(CloseCode::Malformed)),
    };
    if !may_send(role, kind) {
        return LaneEnd::Violation(PeerViolation::Other(CloseCode::Forbidden));
    }
    match kind {
        MessageKind::Control(_) => {
            receive_control(&context, &link, TransportPath::Quic, stream).await
        }
        MessageKind::Tensor => receive_frames(&context, &link, TransportPath::Quic, stream).await,
        MessageKind::Bulk | MessageKind::Request => unreachable!("these go both ways"),
    }
}

/// Accepts streams that go both ways. `path` is that of a member; a client has none, and only sends
/// requests.
pub(super) async fn accept_two_way(
    context: Arc<TransportContext>,
    connection: Connection,
    peer: PeerIdentity,
    path: Option<TransportPath>,
) -> LaneEnd {
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            stream = connection.accept_bi() => {
                let Ok((send, receive)) = stream else { return LaneEnd::Over };
                streams.spawn(handle_two_way(Arc::clone(&context), peer, path, send, receive));
            }
            Some(Ok(LaneEnd::Violation(violation))) = streams.join_next() => {
                return LaneEnd::Violation(violation);
            }
        }
    }
}

async fn handle_two_way(
    context: Arc<TransportContext>,
    peer: PeerIdentity,
    path: Option<TransportPath>,
    send: SendStream,
    mut receive: RecvStream,
) -> LaneEnd {
    let mut tag = [0];
    if receive.read_exact(&mut tag).await.is_err() {
        return LaneEnd::Over;
    }
    match tag {
        [REQUEST_STREAM] if may_send(peer.role, MessageKind::Request) => {
            match serve_request(&context, peer, send, receive).await {
                Ok(()) => LaneEnd::Over,
                Err(code) => LaneEnd::Violation(PeerViolation::Other(code)),
            }
        }
        [BULK_STREAM] if path.is_some() && may_send(peer.role, MessageKind::Bulk) => {
            serve_bulk(&context, peer, TransportPath::Quic, receive, send).await
        }
        [REQUEST_STREAM | BULK_STREAM] => {
            LaneEnd::Violation(PeerViolation::Other(CloseCode::Forbidden))
        }
        [_] => LaneEnd::Violation(PeerViolation::Other(CloseCode::Malformed)),
    }
}
