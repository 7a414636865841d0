//! To a socket that a peer offered.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::acceptor::enlarge_send_buffer;
use super::folder::own_user;
use super::offer::{HostIdentity, LocalLane, LocalOffer, SECRET_BYTES};

/// Time within which a listener must show that it is the right one.
pub const DIAL_DEADLINE: Duration = Duration::from_secs(5);

/// Why an offer leads to no connection. The other path serves then.
#[derive(Debug, Error)]
pub enum LocalDialError {
    /// The offer is from another machine.
    #[error("the socket is on another machine")]
    OtherHost,
    /// No process listens at the path.
    #[error("no process listens there")]
    NotHere(#[source] io::Error),
    /// Another user's process listens there.
    #[error("user {found} listens there, expected {expected}")]
    OtherUser {
        /// User id that this process runs as.
        expected: u32,
        /// User id of the process that listens.
        found: u32,
    },
    /// The listener does not know the secret, or did not show it in time.
    #[error("the listener is not the process that made the offer")]
    WrongListener,
    /// It exceeded the deadline.
    #[error("no answer within {DIAL_DEADLINE:?}")]
    Deadline,
    /// A system call on the connection failed.
    #[error("the connection broke")]
    Stream(#[source] io::Error),
}

/// A connection for `lane` to the process that made the offer, if it is on this machine.
///
/// # Errors
/// If it is not, or does not answer.
pub async fn dial(
    offer: &LocalOffer,
    here: &HostIdentity,
    lane: LocalLane,
) -> Result<UnixStream, LocalDialError> {
    if offer.host != *here {
        return Err(LocalDialError::OtherHost);
    }
    let dialled = timeout(DIAL_DEADLINE, authenticate(offer, lane)).await;
    dialled.map_err(|_| LocalDialError::Deadline)?
}

async fn authenticate(offer: &LocalOffer, lane: LocalLane) -> Result<UnixStream, LocalDialError> {
    let mut stream = UnixStream::connect(&offer.path).await.map_err(LocalDialError::NotHere)?;
    let expected = own_user().map_err(LocalDialError::Stream)?;
    let found = stream.peer_cred().map_err(LocalDialError::Stream)?.uid();
    if found != expected {
        return Err(LocalDialError::OtherUser { expected, found });
    }
    let mut greeting = [lane.to_byte(); 1 + SECRET_BYTES];
    greeting[1..].copy_from_slice(offer.secret.bytes());
    stream.write_all(&greeting).await.map_err(LocalDialError::Stream)?;
    let mut proof = [0; SECRET_BYTES];
    // A listener that does not know the secret closes the connection.
    let read = stream.read_exact(&mut proof).await;
    if read.is_err() || blake3::Hash::from_bytes(proof) != offer.secret.proof() {
        return Err(LocalDialError::WrongListener);
    }
    enlarge_send_buffer(&stream).map_err(LocalDialError::Stream)?;
    Ok(stream)
}
