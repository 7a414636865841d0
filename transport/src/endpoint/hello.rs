//! The first messages of two members on a new connection.
//!
//! ```text
//!   dialler   oldest version u16 | newest u16 | body length u16 | body (postcard)   ->
//!                 <- the same from the end that was dialled
//!   dialler   path u8: 0 QUIC, 1 same host                                          ->
//! ```
//!
//! The versions and the length never change their place, so that programs of any two versions can
//! find that they have none in common.

use std::io;

use quinn::SendStream;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::event::TransportPath;
use crate::local::{HostIdentity, LocalOffer};
use crate::peers::ProcessStart;
use crate::version::VersionRange;

/// The longest body. Ours has below 300 bytes.
const BODY_BYTES_MAX: usize = 1024;
const HEAD_BYTES: usize = 6;

/// The facts that a process sends about itself on a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// The protocol versions it supports.
    pub(crate) versions: VersionRange,
    /// Which start of the node it is.
    pub(crate) start: ProcessStart,
    /// Which of its attempts to reach the peer; only the dialler's counts.
    pub(crate) attempt: u64,
    /// The host it is on, if it has a same-host socket or is a client, which uses the node's.
    pub(crate) host: Option<HostIdentity>,
    /// Admission of the peer to its same-host socket.
    pub(crate) offer: Option<LocalOffer>,
}

#[derive(Serialize, Deserialize)]
struct HelloBody {
    boot: u64,
    life: u64,
    attempt: u64,
    host: Option<HostIdentity>,
    offer: Option<Vec<u8>>,
}

/// Why no hello came.
#[derive(Debug, Error)]
pub enum HelloFault {
    /// The bytes are no hello.
    #[error("its hello makes no sense")]
    Malformed,
    /// The two processes have no protocol version in common.
    #[error("it speaks protocol versions {theirs}, this process speaks {ours}")]
    Version {
        /// The versions that this process supports.
        ours: VersionRange,
        /// The versions that the peer supports.
        theirs: VersionRange,
    },
    /// The connection, or the stream of the hello, failed.
    #[error("the connection broke during the hello")]
    Broken(#[from] io::Error),
}

impl PeerHello {
    /// The hello of a process with a start that means nothing to the peer.
    pub(crate) const fn anonymous(versions: VersionRange) -> Self {
        let start = ProcessStart { boot: 0, life: 0 };
        Self { versions, start, attempt: 0, host: None, offer: None }
    }

    /// Its bytes: the head, then the body.
    ///
    /// # Panics
    /// Never: a hello is below 64 KiB.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = HelloBody {
            boot: self.start.boot,
            life: self.start.life,
            attempt: self.attempt,
            host: self.host.clone(),
            offer: self.offer.as_ref().map(LocalOffer::encode),
        };
        let body = postcard::to_allocvec(&body).expect("plain data");
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
        bytes.extend_from_slice(&self.versions.oldest.to_le_bytes());
        bytes.extend_from_slice(&self.versions.newest.to_le_bytes());
        let length = u16::try_from(body.len()).expect("a hello is short");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    fn decode(versions: VersionRange, body: &[u8]) -> Result<Self, HelloFault> {
        let (body, rest): (HelloBody, _) =
            postcard::take_from_bytes(body).map_err(|_| HelloFault::Malformed)?;
        if !rest.is_empty() {
            return Err(HelloFault::Malformed);
        }
        let offer = body.offer.map(|bytes| LocalOffer::decode(&bytes)).transpose();
        Ok(Self {
            versions,
            start: ProcessStart { boot: body.boot, life: body.life },
            attempt: body.attempt,
            host: body.host,
            offer: offer.map_err(|_| HelloFault::Malformed)?,
        })
    }

    pub(crate) async fn write(&self, stream: &mut SendStream) -> Result<(), HelloFault> {
        stream.write_all(&self.encode()).await.map_err(io::Error::from)?;
        Ok(())
    }

    /// The hello that a peer sends first to a process with these versions.
    ///
    /// # Errors
    /// If there is no version in common, the bytes make no sense, or the stream breaks.
    pub async fn read(
        ours: VersionRange,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Result<Self, HelloFault> {
        let mut head = [0; HEAD_BYTES];
        read_exact(stream, &mut head).await?;
        let [a, b, c, d, e, f] = head;
        let theirs =
            VersionRange { oldest: u16::from_le_bytes([a, b]), newest: u16::from_le_bytes([c, d]) };
        if ours.common(theirs).is_none() {
            return Err(HelloFault::Version { ours, theirs });
        }
        let length = usize::from(u16::from_le_bytes([e, f]));
        if length > BODY_BYTES_MAX {
            return Err(HelloFault::Malformed);
        }
        let mut body = vec![0; length];
        read_exact(stream, &mut body).await?;
        Self::decode(theirs, &body)
    }
}

/// Sends the path that the dialler chose.
pub(crate) async fn write_path(
    stream: &mut SendStream,
    path: TransportPath,
) -> Result<(), HelloFault> {
    let byte = match path {
        TransportPath::Quic => 0,
        TransportPath::SameHost => 1,
    };
    stream.write_all(&[byte]).await.map_err(io::Error::from)?;
    Ok(())
}

/// The path that the dialler chose.
pub(crate) async fn read_path(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<TransportPath, HelloFault> {
    let mut byte = [0];
    read_exact(stream, &mut byte).await?;
    match byte {
        [0] => Ok(TransportPath::Quic),
        [1] => Ok(TransportPath::SameHost),
        [_] => Err(HelloFault::Malformed),
    }
}

async fn read_exact(
    stream: &mut (impl AsyncRead + Unpin),
    into: &mut [u8],
) -> Result<(), HelloFault> {
    stream.read_exact(into).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_comes_back_as_it_was_and_nothing_may_follow_it() {
        let versions = VersionRange { oldest: 3, newest: 5 };
        let hello = PeerHello {
            versions,
            start: ProcessStart { boot: 3, life: u64::MAX },
            attempt: 9,
            host: HostIdentity::read().ok(),
            offer: None,
        };
        let bytes = hello.encode();
        assert_eq!(PeerHello::decode(versions, &bytes[HEAD_BYTES..]).unwrap(), hello);
        let longer = [&bytes[HEAD_BYTES..], &[0]].concat();
        assert!(matches!(PeerHello::decode(versions, &longer), Err(HelloFault::Malformed)));
        for end in HEAD_BYTES..bytes.len() {
            assert!(matches!(
                PeerHello::decode(versions, &bytes[HEAD_BYTES..end]),
                Err(HelloFault::Malformed)
            ));
        }
    }
}
