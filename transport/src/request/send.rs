//! The requesting side of a request.

use std::time::Duration;

use quinn::{Connection, RecvStream, SendStream, WriteError};
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
    if request.len() > REQUEST_BYTES_MAX {
        let bytes = request.len();
        let limit = REQUEST_BYTES_MAX;
        return Err(RequestError::TooLong { bytes, limit });
    }
    let answered = timeout(within, exchange(connection, request)).await;
    answered.unwrap_or(Err(RequestError::Deadline { within }))
}

async fn exchange(connection: &Connection, request: &[u8]) -> Result<Vec<u8>, RequestError> {
    let broken = |_| broken_error(connection);
    let (mut send, mut receive) = connection.open_bi().await.map_err(broken)?;
    let length = u32::try_from(request.len()).expect("below the limit");
    let mut head = [REQUEST_STREAM; 5];
    head[1..].copy_from_slice(&length.to_le_bytes());
    write(&mut send, &head, request).await.map_err(|_| broken_error(connection))?;
    let mut outcome = [0];
    receive.read_exact(&mut outcome).await.map_err(|_| broken_error(connection))?;
    match RequestOutcome::of(outcome[0]) {
        Some(RequestOutcome::Answer) => read_answer(connection, receive).await,
        Some(RequestOutcome::Busy) => Err(RequestError::Busy),
        Some(RequestOutcome::Unanswered) => Err(RequestError::Unanswered),
        None => Err(RequestError::Broken),
    }
}

/// A peer that is too busy stops the stream before it has read all; its outcome is on the way.
async fn write(send: &mut SendStream, head: &[u8], request: &[u8]) -> Result<(), WriteError> {
    for bytes in [head, request] {
        match send.write_all(bytes).await {
            Err(WriteError::Stopped(_)) => return Ok(()),
            written => written?,
        }
    }
    // Stopped meanwhile: the same.
    let _ = send.finish();
    Ok(())
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

async fn read_answer(
    connection: &Connection,
    mut receive: RecvStream,
) -> Result<Vec<u8>, RequestError> {
    let mut length = [0; 4];
    receive.read_exact(&mut length).await.map_err(|_| broken_error(connection))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > ANSWER_BYTES_MAX {
        let bytes = length;
        let limit = ANSWER_BYTES_MAX;
        return Err(RequestError::AnswerTooLong { bytes, limit });
    }
    let read = read_growing(&mut receive, length).await;
    read.map_err(|_| broken_error(connection))
}
