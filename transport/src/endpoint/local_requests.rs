//! A client's requests to a node of the same host, by its Unix socket.
//!
//! A model that is exported comes over such a connection. By QUIC each of its bytes is encrypted,
//! cut into packets and put together again, by processors that it shares with a training.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::local::{HostIdentity, LocalLane, LocalOffer, dial};
use crate::request::{RequestError, exchange};

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

    /// Whether a socket is held open for the next request.
    pub(super) fn holds_socket(&self) -> bool {
        match *self.lock() {
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
        let attempt = timeout(within, async {
            let mut socket = self.take().await?;
            let (mut receive, mut send) = socket.split();
            let answered = exchange((&mut receive, &mut send), None, request).await;
            Some((socket, answered))
        });
        match attempt.await {
            Ok(Some((socket, Ok(answered)))) => {
                match answered {
                    // The next request may follow.
                    Ok(_) | Err(RequestError::Unanswered | RequestError::TooLong { .. }) => {
                        *self.lock() = LocalState::Idle(socket);
                    }
                    // A node that is busy closes it, and of a longer answer bytes are left.
                    Err(_) => drop(socket),
                }
                Some(answered)
            }
            Ok(Some((_, Err(_)))) => Some(Err(RequestError::Broken)),
            Ok(None) => None,
            Err(_) => Some(Err(RequestError::Deadline { within })),
        }
    }

    /// The socket that is held, or a new one; none if it cannot be used.
    async fn take(&self) -> Option<UnixStream> {
        let state = mem::replace(&mut *self.lock(), LocalState::Undialled);
        let socket = match state {
            LocalState::Idle(socket) => Some(socket),
            LocalState::Undialled => dial(&self.offer, &self.host, LocalLane::Request).await.ok(),
            LocalState::Refused => None,
        };
        if socket.is_none() {
            *self.lock() = LocalState::Refused;
        }
        socket
    }

    fn lock(&self) -> MutexGuard<'_, LocalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
