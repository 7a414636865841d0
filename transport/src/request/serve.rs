//! The answering side of a request.

use quinn::{ReadExactError, RecvStream, SendStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use zbelastic_identity::PeerIdentity;

use super::RequestReply;
use crate::endpoint::{CloseCode, TransportContext};
use crate::event::TransportEvent;
use crate::limits::{ANSWER_BYTES_MAX, REQUEST_BYTES_MAX};

/// The steps in which memory grows for bytes that were announced.
const GROWTH_BYTES: usize = 64 << 10;

/// The outcome of a request, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    Answer,
    Busy,
    Unanswered,
}

impl RequestOutcome {
    const fn byte(self) -> u8 {
        match self {
            Self::Answer => 0,
            Self::Busy => 1,
            Self::Unanswered => 2,
        }
    }

    pub(super) const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Answer),
            1 => Some(Self::Busy),
            2 => Some(Self::Unanswered),
            _ => None,
        }
    }
}

/// Reads a request, gives it to the node, and sends the answer. An error is a reason to close the
/// connection.
pub(crate) async fn serve_request(
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

/// Reads so many bytes; memory grows as they arrive.
pub(super) async fn read_growing(
    receive: &mut RecvStream,
    length: usize,
) -> Result<Vec<u8>, ReadExactError> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let from = bytes.len();
        bytes.resize(from + (length - from).min(GROWTH_BYTES), 0);
        receive.read_exact(&mut bytes[from..]).await?;
    }
    Ok(bytes)
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
