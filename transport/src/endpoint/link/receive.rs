//! The messages that arrive on a lane, on either path.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use zbelastic_identity::PeerIdentity;

use super::LaneEnd;
use crate::bulk::{ServeBulkError, serve};
use crate::close_code::CloseCode;
use crate::control::{ControlFault, ControlReader};
use crate::endpoint::context::TransportContext;
use crate::event::{PeerViolation, TransportEvent, TransportPath};
use crate::frame::{FrameArrival, FrameReader, ReadFrameError, ReceivedFrame};
use crate::peers::{ControlKind, MessageKind, PeerLink, may_send};

/// How a lane ends when its stream does.
const fn end_of_stream(path: TransportPath) -> LaneEnd {
    match path {
        TransportPath::Quic => LaneEnd::Over,
        TransportPath::SameHost => LaneEnd::SocketGone,
    }
}

/// Reads control messages until the stream ends.
pub(super) async fn receive_control<R: AsyncRead + Unpin>(
    context: &TransportContext,
    link: &PeerLink,
    path: TransportPath,
    stream: R,
) -> LaneEnd {
    let mut reader = ControlReader::new(stream);
    loop {
        match reader.read().await {
            Ok(Some(bytes)) => {
                if let Err(code) = handle_control(context, link, path, bytes) {
                    return LaneEnd::Violation(PeerViolation::Other(code));
                }
            }
            Ok(None) | Err(ControlFault::Stream(_)) => return end_of_stream(path),
            Err(ControlFault::Length { .. }) => {
                return LaneEnd::Violation(PeerViolation::Other(CloseCode::Length));
            }
            Err(ControlFault::Malformed) => {
                return LaneEnd::Violation(PeerViolation::Other(CloseCode::Malformed));
            }
        }
    }
}

fn handle_control(
    context: &TransportContext,
    link: &PeerLink,
    path: TransportPath,
    bytes: Bytes,
) -> Result<(), CloseCode> {
    let counters = &context.counters;
    counters.control.received(path, 1, bytes.len() as u64);
    let first = bytes.first().copied().expect("a control message is never empty");
    let Some(kind) = ControlKind::of(first) else {
        counters.control_unknown_kind.increment();
        return Ok(());
    };
    if !may_send(link.peer.role, MessageKind::Control(kind)) {
        return Err(CloseCode::Forbidden);
    }
    if !context.events.try_send(TransportEvent::Control { from: link.peer, bytes }) {
        counters.control_events_full.increment();
    }
    Ok(())
}

/// Reads frames until the stream ends.
pub(super) async fn receive_frames<R: AsyncRead + Unpin>(
    context: &TransportContext,
    link: &PeerLink,
    path: TransportPath,
    stream: R,
) -> LaneEnd {
    let rules = context.rules.subscribe();
    let parts = context.part_pool.clone();
    let mut reader = FrameReader::new(stream, link.peer, rules, parts);
    loop {
        match reader.read().await {
            Ok(Some(FrameArrival::Frame(frame))) => deliver_frame(context, path, frame),
            Ok(Some(FrameArrival::Skipped { .. })) => context.counters.frames.dropped.increment(),
            Ok(None) | Err(ReadFrameError::Cut | ReadFrameError::Stream(_)) => {
                return end_of_stream(path);
            }
            Err(ReadFrameError::Refused(refusal)) => {
                context.counters.frames_refused.increment();
                return LaneEnd::Violation(refusal.into());
            }
        }
    }
}

fn deliver_frame(context: &TransportContext, path: TransportPath, frame: ReceivedFrame) {
    let floats: usize = frame.parts.iter().map(|part| part.len()).sum();
    let bytes = frame.meta.len() + floats * size_of::<f32>();
    context.counters.frames.received(path, 1, bytes as u64);
    let sink = context.frame_sink.borrow().clone();
    match sink {
        Some(sink) => sink(frame),
        None => context.counters.frames.dropped.increment(),
    }
}

/// Answers requests for bodies until the stream ends.
pub(super) async fn serve_bulk<R, W>(
    context: &Arc<TransportContext>,
    peer: PeerIdentity,
    path: TransportPath,
    receive: R,
    send: W,
) -> LaneEnd
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let source = context.bulk_source.borrow().clone();
    let find = move |key: &[u8]| source.as_ref().and_then(|source| source(&peer, key));
    match serve(receive, send, find).await {
        Ok(served) => {
            context.counters.bulk.sent(path, served.chunks, served.bytes);
            LaneEnd::Over
        }
        Err(ServeBulkError::Refused(_)) => {
            LaneEnd::Violation(PeerViolation::Other(CloseCode::Malformed))
        }
        Err(ServeBulkError::Body { .. } | ServeBulkError::Stalled | ServeBulkError::Stream(_)) => {
            LaneEnd::Over
        }
    }
}
