//! The answering side of a request.

use quinn::{RecvStream, SendStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use zbelastic_identity::PeerIdentity;

use crate::close_code::CloseCode;
use crate::endpoint::context::TransportContext;
use crate::event::{RequestReply, TransportEvent};
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
    let counters = &context.counters;
    let Ok(permit) = context.requests_open.try_acquire() else {
        counters.requests_busy.increment();
        write_outcome(&mut send, RequestOutcome::Busy, &[]).await;
        return Ok(());
    };
    let within = context.limits.request_within;
    let Ok(read) = timeout(within, read_request(&mut receive)).await else {
        return Ok(());
    };
    let Some(bytes) = read.inspect_err(|_| counters.requests_refused.increment())? else {
        return Ok(());
    };
    let (answer, answered) = oneshot::channel();
    let event =
        TransportEvent::Request { from, bytes: bytes.into(), reply: RequestReply { answer } };
    if !context.events.try_send(event) {
        counters.requests_busy.increment();
        write_outcome(&mut send, RequestOutcome::Busy, &[]).await;
        return Ok(());
    }
    counters.requests_accepted.increment();
    tokio::select! {
        answer = answered => match answer {
            Ok(bytes) if bytes.len() <= ANSWER_BYTES_MAX => {
                write_outcome(&mut send, RequestOutcome::Answer, &bytes).await;
            }
            Ok(_) | Err(_) => write_outcome(&mut send, RequestOutcome::Unanswered, &[]).await,
        },
        // The requester went away; the node sees that the request is cancelled.
        _ = send.stopped() => {}
    }
    drop(permit);
    Ok(())
}

/// None if the requester went away.
async fn read_request(receive: &mut RecvStream) -> Result<Option<Vec<u8>>, CloseCode> {
    let mut head = [0; 4];
    if receive.read_exact(&mut head).await.is_err() {
        return Ok(None);
    }
    let length = u32::from_le_bytes(head) as usize;
    if length > REQUEST_BYTES_MAX {
        return Err(CloseCode::Length);
    }
    Ok(read_growing(receive, length).await.ok())
}

async fn write_outcome(send: &mut SendStream, outcome: RequestOutcome, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("below the limit");
    let mut head = [outcome.byte(); 5];
    head[1..].copy_from_slice(&length.to_le_bytes());
    // A requester that went away needs no outcome.
    if send.write_all(&head).await.is_ok() && send.write_all(bytes).await.is_ok() {
        let _ = send.finish();
    }
}
