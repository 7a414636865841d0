//! The requesting side of a request.

use std::io;
use std::time::Duration;

use quinn::Connection;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::RequestError;
use super::wire::{REQUEST_STREAM, RequestOutcome, read_growing};
use crate::close_code::CloseCode;
use crate::limits::{ANSWER_BYTES_MAX, REQUEST_BYTES_MAX};

/// Sends a request on a new stream and waits for the answer. To drop the future is to cancel it.
pub(crate) async fn send_request(
    connection: &Connection,
    request: &[u8],
    within: Duration,
) -> Result<Vec<u8>, RequestError> {
    let answered = timeout(within, async {
        let (mut send, mut receive) = connection.open_bi().await?;
        exchange((&mut receive, &mut send), Some(REQUEST_STREAM), request).await
    });
    match answered.await {
        Ok(Ok(answered)) => answered,
        Ok(Err(_)) => Err(broken_error(connection)),
        Err(_) => Err(RequestError::Deadline { within }),
    }
}

/// Writes a request, behind the byte that names the kind of stream if there is one, and reads its
/// outcome.
///
/// # Errors
/// If the stream broke.
pub(crate) async fn exchange<R, W>(
    (receive, send): (&mut R, &mut W),
    kind: Option<u8>,
    request: &[u8],
) -> io::Result<Result<Vec<u8>, RequestError>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    if request.len() > REQUEST_BYTES_MAX {
        let bytes = request.len();
        return Ok(Err(RequestError::TooLong { bytes, limit: REQUEST_BYTES_MAX }));
    }
    // A peer that is busy reads no further, and its outcome is on the way.
    let _ = write(send, kind, request).await;
    let outcome = receive.read_u8().await?;
    let length = receive.read_u32_le().await? as usize;
    Ok(match RequestOutcome::of(outcome) {
        Some(RequestOutcome::Answer) if length > ANSWER_BYTES_MAX => {
            Err(RequestError::AnswerTooLong { bytes: length, limit: ANSWER_BYTES_MAX })
        }
        Some(RequestOutcome::Answer) => Ok(read_growing(receive, length).await?),
        Some(RequestOutcome::Busy) => Err(RequestError::Busy),
        Some(RequestOutcome::Unanswered) => Err(RequestError::Unanswered),
        None => return Err(io::ErrorKind::InvalidData.into()),
    })
}

async fn write<W>(send: &mut W, kind: Option<u8>, request: &[u8]) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let length = u32::try_from(request.len()).expect("below the limit");
    let head: Vec<u8> = kind.into_iter().chain(length.to_le_bytes()).collect();
    send.write_all(&head).await?;
    send.write_all(request).await?;
    send.flush().await
}

fn broken_error(connection: &Connection) -> RequestError {
    match connection.close_reason() {
        Some(quinn::ConnectionError::ApplicationClosed(close))
            if CloseCode::of(close.error_code.into_inner()) == CloseCode::Forbidden =>
        {
            RequestError::Forbidden
        }
        Some(_) | None => RequestError::Broken,
    }
}
