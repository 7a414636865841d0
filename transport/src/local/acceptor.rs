//! Accepts local connections: a task that admits those that show a secret.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use zbelastic_types::NodeId;

use super::listener::{AdmittedSecrets, LocalAdmissionId, LocalArrival};
use super::offer::{LocalLane, LocalSecret, SECRET_BYTES};

/// The most connections that have not shown a secret yet: two lanes of each of 128 processes of this
/// machine that begin at once. One more, and the oldest is closed: one that is silent cannot keep
/// others out.
pub const UNAUTHENTICATED_MAX: usize = 256;
/// Time within which a connection must show a secret.
pub const GREETING_DEADLINE: Duration = Duration::from_secs(5);
/// The most connections that wait in a listener. While there are as many, no other one is accepted:
/// one whose peer was shown the proof is not closed.
pub(super) const ARRIVALS_MAX: usize = 32;
/// The pause after a failure to accept, as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Size in bytes of the socket buffer that is requested of the system. It may give less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// The admissions that a connection is checked against.
#[derive(Clone)]
pub(super) struct LocalAcceptor {
    user: u32,
    secrets: watch::Receiver<AdmittedSecrets>,
    arrivals: mpsc::Sender<LocalArrival>,
    refused: Arc<AtomicU64>,
}

impl LocalAcceptor {
    pub(super) fn new(
        user: u32,
        secrets: watch::Receiver<AdmittedSecrets>,
        arrivals: mpsc::Sender<LocalArrival>,
        refused: Arc<AtomicU64>,
    ) -> Self {
        Self { user, secrets, arrivals, refused }
    }

    /// Admits the connections that may come, until it is aborted.
    pub(super) async fn run(self, socket: UnixListener) {
        let mut tasks = JoinSet::new();
        let mut oldest: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            tokio::select! {
                accepted = socket.accept() => match accepted {
                    Ok((stream, _)) => {
                        oldest.retain(|task| !task.is_finished());
                        if oldest.len() == UNAUTHENTICATED_MAX {
                            oldest.pop_front().expect("it is full").abort();
                            self.refused.fetch_add(1, Ordering::Relaxed);
                        }
                        oldest.push_back(tasks.spawn(self.clone().receive(stream)));
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
                Some(received) = tasks.join_next() => match received {
                    // Without a receiver the listener is gone, and the connection with it.
                    Ok(Some(arrival)) => {
                        let _ = self.arrivals.send(arrival).await;
                    }
                    Ok(None) => {
                        self.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    // Closed for another one, and counted then.
                    Err(_) => {}
                },
            }
        }
    }

    /// The connection, if it authenticates in time; it is closed otherwise.
    async fn receive(self, mut stream: UnixStream) -> Option<LocalArrival> {
        let authenticated = timeout(GREETING_DEADLINE, self.authenticate(&mut stream)).await;
        let (admission, peer, lane) = authenticated.ok()??;
        Some(LocalArrival { admission, peer, lane, stream })
    }

    async fn authenticate(
        &self,
        stream: &mut UnixStream,
    ) -> Option<(LocalAdmissionId, NodeId, LocalLane)> {
        if stream.peer_cred().ok()?.uid() != self.user {
            return None;
        }
        let mut greeting = [0; 1 + SECRET_BYTES];
        stream.read_exact(&mut greeting).await.ok()?;
        let [lane, secret @ ..] = greeting;
        let lane = LocalLane::from_byte(lane)?;
        let secret = LocalSecret::from_bytes(secret);
        let (admission, peer) = self.find_admission(&secret)?;
        stream.write_all(secret.proof().as_bytes()).await.ok()?;
        enlarge_send_buffer(stream).ok()?;
        Some((admission, peer, lane))
    }

    /// The admission and the peer of the secret. Looks at all of them, so that the time reveals
    /// nothing.
    fn find_admission(&self, secret: &LocalSecret) -> Option<(LocalAdmissionId, NodeId)> {
        let secrets = self.secrets.borrow();
        secrets.iter().fold(
            None,
            |found, (&admission, (peer, known))| {
                if known == secret { Some((admission, *peer)) } else { found }
            },
        )
    }
}

/// Requests a larger send buffer than the system gives by itself.
pub(super) fn enlarge_send_buffer(stream: &UnixStream) -> io::Result<()> {
    SockRef::from(stream).set_send_buffer_size(SOCKET_BUFFER_BYTES)
}
