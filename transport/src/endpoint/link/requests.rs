//! The answering side of a request.

use std::io;
use std::sync::Arc;

use quinn::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use zbelastic_identity::PeerIdentity;

use super::LaneEnd;
use crate::close_code::CloseCode;
use crate::endpoint::context::TransportContext;
use crate::event::{PeerViolation, RequestReply, TransportEvent};
use crate::limits::{ANSWER_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::request::{RequestOutcome, read_growing};

/// Reads a request, gives it to the node, and sends the answer. An error is a reason to close the
/// connection.
pub(super) async fn serve_request(
    context: &TransportContext,
    from: PeerIdentity,
    mut send: SendStream,
    mut receive: RecvStream,
) -> Result<(), CloseCode> {
    let mut head = [0; 4];
    let read = timeout(context.limits.request_within, receive.read_exact(&mut head)).await;
    if !matches!(read, Ok(Ok(()))) {
        return Ok(());
    }
    let gone = send.stopped();
    let gone = async {
        // However it ended, nobody reads an answer.
        let _ = gone.await;
    };
    serve_one(context, from, head, (&mut receive, &mut send), |_| gone).await?;
    // One that went away needs no answer.
    let _ = send.finish();
    Ok(())
}

/// Serves the requests of a client's socket, one after another. One that waits for the next is
/// idle, for as long as the client's connection lasts.
pub(super) async fn serve_request_socket(
    context: Arc<TransportContext>,
    from: PeerIdentity,
    mut socket: UnixStream,
) -> LaneEnd {
    let (mut receive, mut send) = socket.split();
    loop {
        let mut head = [0; 4];
        if receive.read_exact(&mut head).await.is_err() {
            return LaneEnd::Over;
        }
        let ends = (&mut receive, &mut send);
        match serve_one(&context, from, head, ends, gone).await {
            Ok(ServedRequest::Answered) => {}
            Ok(ServedRequest::Ended) => return LaneEnd::Over,
            Err(code) => return LaneEnd::Violation(PeerViolation::Other(code)),
        }
    }
}

/// Ends when the requester closes its socket. One that sends bytes before it has the answer broke
/// the order of both, so that it is not served any more either.
async fn gone<R: AsyncRead + Unpin>(receive: &mut R) {
    let _ = receive.read_u8().await;
}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServedRequest {
    /// It was answered, and another may follow.
    Answered,
    /// No other can follow: the requester went away, or it was not read.
    Ended,
}

/// Reads the request behind its length, which is read, and answers it on any two ends. `gone` ends
/// when nobody waits for the answer.
async fn serve_one<'a, R, W, F>(
    context: &TransportContext,
    from: PeerIdentity,
    head: [u8; 4],
    (receive, send): (&'a mut R, &mut W),
    gone: impl FnOnce(&'a mut R) -> F,
) -> Result<ServedRequest, CloseCode>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    F: Future<Output = ()>,
{
    let counters = &context.counters;
    let Ok(permit) = context.requests_open.try_acquire() else {
        counters.requests_busy.increment();
        let _ = write_outcome(send, RequestOutcome::Busy, &[]).await;
        return Ok(ServedRequest::Ended);
    };
    let length = u32::from_le_bytes(head) as usize;
    if length > REQUEST_BYTES_MAX {
        counters.requests_refused.increment();
        return Err(CloseCode::Length);
    }
    let Ok(Ok(bytes)) = timeout(context.limits.request_within, read_growing(receive, length)).await
    else {
        return Ok(ServedRequest::Ended);
    };
    let (answer, answered) = oneshot::channel();
    let event =
        TransportEvent::Request { from, bytes: bytes.into(), reply: RequestReply { answer } };
    if !context.events.try_send(event) {
        counters.requests_busy.increment();
        let _ = write_outcome(send, RequestOutcome::Busy, &[]).await;
        return Ok(ServedRequest::Ended);
    }
    counters.requests_accepted.increment();
    let written = tokio::select! {
        answer = answered => match answer {
            Ok(bytes) if bytes.len() <= ANSWER_BYTES_MAX => {
                write_outcome(send, RequestOutcome::Answer, &bytes).await
            }
            Ok(_) | Err(_) => write_outcome(send, RequestOutcome::Unanswered, &[]).await,
        },
        // The requester went away; the node sees that the request is cancelled.
        () = gone(receive) => return Ok(ServedRequest::Ended),
    };
    drop(permit);
    Ok(if written.is_ok() { ServedRequest::Answered } else { ServedRequest::Ended })
}

/// # Errors
/// If the requester went away: it needs no outcome.
async fn write_outcome<W: AsyncWrite + Unpin>(
    send: &mut W,
    outcome: RequestOutcome,
    bytes: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).expect("below the limit");
    let mut head = [outcome.byte(); 5];
    head[1..].copy_from_slice(&length.to_le_bytes());
    send.write_all(&head).await?;
    send.write_all(bytes).await?;
    send.flush().await
}
