//! What comes on a lane, on either road.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{LaneEnd, Link};
use crate::bulk::{ServeBulkError, serve};
use crate::control::{ControlFault, ControlReader};
use crate::endpoint::close::CloseCode;
use crate::endpoint::context::Context;
use crate::event::{Road, TransportEvent, Violation};
use crate::frame::{FrameArrival, FrameReader, ReadFrameError, ReceivedFrame};
use crate::identity::PeerIdentity;
use crate::peers::{ControlKind, MessageKind, may};

/// How a lane ends when its stream does.
const fn end_of_stream(road: Road) -> LaneEnd {
    match road {
        Road::Quic => LaneEnd::Over,
        Road::SameHost => LaneEnd::SocketGone,
    }
}

/// Reads control messages until the stream ends.
pub(super) async fn receive_control<R: AsyncRead + Unpin>(
    context: &Context,
    link: &Link,
    road: Road,
    stream: R,
) -> LaneEnd {
    let mut reader = ControlReader::new(stream);
    loop {
        match reader.read().await {
            Ok(Some(bytes)) => {
                if let Err(code) = take_control(context, link, road, bytes) {
                    return LaneEnd::Violation(Violation::Other(code));
                }
            }
            Ok(None) | Err(ControlFault::Stream(_)) => return end_of_stream(road),
            Err(ControlFault::Length { .. }) => {
                return LaneEnd::Violation(Violation::Other(CloseCode::Length));
            }
            Err(ControlFault::Malformed) => {
                return LaneEnd::Violation(Violation::Other(CloseCode::Malformed));
            }
        }
    }
}

fn take_control(context: &Context, link: &Link, road: Road, bytes: Bytes) -> Result<(), CloseCode> {
    let tallies = &context.tallies;
    tallies.control.received(road, 1, bytes.len() as u64);
    let first = bytes.first().copied().expect("a control message is never empty");
    let Some(kind) = ControlKind::of(first) else {
        tallies.control_unknown_kind.one();
        return Ok(());
    };
    if !may(link.peer.role, MessageKind::Control(kind)) {
        return Err(CloseCode::Forbidden);
    }
    if !context.events.offer(TransportEvent::Control { from: link.peer, bytes }) {
        tallies.control_events_full.one();
    }
    Ok(())
}

/// Reads frames until the stream ends.
pub(super) async fn receive_frames<R: AsyncRead + Unpin>(
    context: &Context,
    link: &Link,
    road: Road,
    stream: R,
) -> LaneEnd {
    let (rules, parts) = (context.rules.subscribe(), context.parts.clone());
    let mut reader = FrameReader::new(stream, link.peer, rules, parts);
    loop {
        match reader.read().await {
            Ok(Some(FrameArrival::Frame(frame))) => take_frame(context, road, frame),
            Ok(Some(FrameArrival::Skipped { .. })) => context.tallies.frames.dropped.one(),
            Ok(None) | Err(ReadFrameError::Cut | ReadFrameError::Stream(_)) => {
                return end_of_stream(road);
            }
            Err(ReadFrameError::Refused(refusal)) => {
                context.tallies.frames_refused.one();
                return LaneEnd::Violation(refusal.into());
            }
        }
    }
}

fn take_frame(context: &Context, road: Road, frame: ReceivedFrame) {
    let floats: usize = frame.parts.iter().map(|part| part.len()).sum();
    let bytes = frame.meta.len() + floats * size_of::<f32>();
    context.tallies.frames.received(road, 1, bytes as u64);
    let sink = context.sink.borrow().clone();
    match sink {
        Some(sink) => sink(frame),
        None => context.tallies.frames.dropped.one(),
    }
}

/// Answers requests for bodies until the stream ends.
pub(super) async fn serve_bulk<R, W>(
    context: &Arc<Context>,
    peer: PeerIdentity,
    road: Road,
    receive: R,
    send: W,
) -> LaneEnd
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let source = context.source.borrow().clone();
    let find = move |key: &[u8]| source.as_ref().and_then(|source| source(&peer, key));
    match serve(receive, send, find).await {
        Ok(served) => {
            context.tallies.bulk.sent(road, served.chunks, served.bytes);
            LaneEnd::Over
        }
        Err(ServeBulkError::Refused(_)) => {
            LaneEnd::Violation(Violation::Other(CloseCode::Malformed))
        }
        Err(ServeBulkError::Body { .. } | ServeBulkError::Stalled | ServeBulkError::Stream(_)) => {
            LaneEnd::Over
        }
    }
}
