//! A client's requests to a node of the same host, by its Unix socket.
//!
//! A model that is exported comes over such a connection. By QUIC each of its bytes is encrypted,
//! cut into packets and put together again, by processors that it shares with a training.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::limits::{ANSWER_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::local::{HostIdentity, LocalLane, LocalOffer, dial};
use crate::request::{RequestError, RequestOutcome, read_growing};

/// The socket that a node offered to a client.
#[derive(Debug)]
pub(super) struct LocalRequests {
    offer: LocalOffer,
    host: HostIdentity,
    /// Locked only to take the socket out and to put it back: a request has it to itself.
    state: Mutex<LocalState>,
}

#[derive(Debug)]
enum LocalState {
    /// None is open, or a request uses it.
    Undialled,
    /// One that no request uses.
    Idle(UnixStream),
    /// It leads nowhere, or to another process: as from a container, or of another user.
    Refused,
}

impl LocalRequests {
    /// Of a client on `host`.
    pub(super) const fn new(offer: LocalOffer, host: HostIdentity) -> Self {
        Self { offer, host, state: Mutex::new(LocalState::Undialled) }
    }

    /// Whether a socket is open for the next request.
    pub(super) fn is_open(&self) -> bool {
        match *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            LocalState::Idle(_) => true,
            LocalState::Undialled | LocalState::Refused => false,
        }
    }

    /// Sends a request and waits for the answer. None if the socket cannot be used: nothing was
    /// sent. To drop the future is to cancel the request.
    pub(super) async fn send(
        &self,
        request: &[u8],
        within: Duration,
    ) -> Option<Result<Vec<u8>, RequestError>> {
        if request.len() > REQUEST_BYTES_MAX {
            let bytes = request.len();
            return Some(Err(RequestError::TooLong { bytes, limit: REQUEST_BYTES_MAX }));
        }
        let mut socket = match self.replace(LocalState::Undialled) {
            LocalState::Idle(socket) => socket,
            LocalState::Undialled => {
                match dial(&self.offer, &self.host, LocalLane::Request).await {
                    Ok(socket) => socket,
                    Err(_) => {
                        self.replace(LocalState::Refused);
                        return None;
                    }
                }
            }
            LocalState::Refused => {
                self.replace(LocalState::Refused);
                return None;
            }
        };
        let exchanged = timeout(within, exchange(&mut socket, request)).await;
        Some(match exchanged {
            Ok(Ok(answered)) => {
                // One that was busy closes it.
                if !matches!(answered, Err(RequestError::Busy | RequestError::AnswerTooLong { .. }))
                {
                    self.replace(LocalState::Idle(socket));
                }
                answered
            }
            Ok(Err(_)) => Err(RequestError::Broken),
            Err(_) => Err(RequestError::Deadline { within }),
        })
    }

    fn replace(&self, state: LocalState) -> LocalState {
        let mut held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut held, state)
    }
}

/// One request and its answer.
///
/// # Errors
/// If the socket broke.
async fn exchange(
    socket: &mut UnixStream,
    request: &[u8],
) -> io::Result<Result<Vec<u8>, RequestError>> {
    let length = u32::try_from(request.len()).expect("below the limit");
    socket.write_all(&length.to_le_bytes()).await?;
    socket.write_all(request).await?;
    let outcome = socket.read_u8().await?;
    let length = socket.read_u32_le().await? as usize;
    Ok(match RequestOutcome::of(outcome) {
        Some(RequestOutcome::Answer) if length > ANSWER_BYTES_MAX => {
            Err(RequestError::AnswerTooLong { bytes: length, limit: ANSWER_BYTES_MAX })
        }
        Some(RequestOutcome::Answer) => Ok(read_growing(socket, length).await?),
        Some(RequestOutcome::Busy) => Err(RequestError::Busy),
        Some(RequestOutcome::Unanswered) => Err(RequestError::Unanswered),
        None => return Err(io::ErrorKind::InvalidData.into()),
    })
}
