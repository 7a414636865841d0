//! Requests and answers as bytes.

use std::io;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The bytes of a chunk, but of the last. It fits the cache between the thread that reads it and
/// the one that writes it to the stream, and the head in front of it costs nothing beside it.
pub const CHUNK_BYTES: usize = 1 << 20;
/// The most bytes of a key.
pub const KEY_BYTES_MAX: usize = 256;
/// The most bytes that are fetched at once: 64 GiB.
pub const BULK_BYTES_MAX: u64 = 64 << 30;
/// The bytes of a chunk's checksum: CRC-32 as in IEEE 802.3. It finds bytes that a holder's memory
/// or a local socket damaged; over a network TLS authenticates each packet. Whether a holder gave
/// the right bytes no checksum of its own can show: layers from checkpoints and texts are compared
/// with a digest that is known beforehand, and states that are copied with each other's
/// fingerprints.
pub(super) const CHECKSUM_BYTES: usize = 4;
/// The bytes of an answer before its chunks.
pub(super) const ANSWER_BYTES: usize = 9;

/// A range of chunks of the body that a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkRequest {
    pub(super) key: Vec<u8>,
    pub(super) first: u64,
    pub(super) count: u64,
}

/// The status and length with which an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkAnswer {
    /// The chunks follow the answer.
    Here { length: u64 },
    /// Nothing follows: there is no such key.
    UnknownKey,
    /// Nothing follows: there is no such range.
    NoSuchRange { length: u64 },
}

/// Why bytes are refused as a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChunkRequestFault {
    /// The key is too long.
    #[error("a key of {found} bytes, at most {KEY_BYTES_MAX} are read")]
    KeyTooLong {
        /// Length of the key in bytes.
        found: usize,
    },
}

/// The number of chunks of `length` bytes.
pub(super) fn chunk_count(length: u64) -> u64 {
    length.div_ceil(CHUNK_BYTES as u64)
}

/// The bytes of a chunk of `length` bytes altogether.
pub(super) fn chunk_bytes(length: u64, chunk: u64) -> usize {
    let rest = length.saturating_sub(chunk.saturating_mul(CHUNK_BYTES as u64));
    usize::try_from(rest).map_or(CHUNK_BYTES, |rest| rest.min(CHUNK_BYTES))
}

impl ChunkRequest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let key_bytes = u16::try_from(self.key.len()).expect("a key is short");
        let mut bytes = Vec::with_capacity(2 + self.key.len() + 16);
        bytes.extend_from_slice(&key_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.first.to_le_bytes());
        bytes.extend_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// The next request, or `None` at the end of the stream.
    pub(super) async fn read<R>(
        reader: &mut R,
    ) -> io::Result<Option<Result<Self, ChunkRequestFault>>>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        let mut length = [0; 2];
        if reader.read(&mut length[..1]).await? == 0 {
            return Ok(None);
        }
        reader.read_exact(&mut length[1..]).await?;
        let found = usize::from(u16::from_le_bytes(length));
        if found > KEY_BYTES_MAX {
            return Ok(Some(Err(ChunkRequestFault::KeyTooLong { found })));
        }
        let mut key = vec![0; found];
        reader.read_exact(&mut key).await?;
        let first = reader.read_u64_le().await?;
        let count = reader.read_u64_le().await?;
        Ok(Some(Ok(Self { key, first, count })))
    }
}

impl ChunkAnswer {
    pub(super) fn encode(self) -> [u8; ANSWER_BYTES] {
        let (status, length) = match self {
            Self::Here { length } => (0, length),
            Self::UnknownKey => (1, 0),
            Self::NoSuchRange { length } => (2, length),
        };
        let mut bytes = [status; ANSWER_BYTES];
        bytes[1..].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// The answer that the bytes are, or the status that is none.
    pub(super) fn decode(bytes: [u8; ANSWER_BYTES]) -> Result<Self, u8> {
        let [status, length @ ..] = bytes;
        let length = u64::from_le_bytes(length);
        match status {
            0 => Ok(Self::Here { length }),
            1 => Ok(Self::UnknownKey),
            2 => Ok(Self::NoSuchRange { length }),
            _ => Err(status),
        }
    }
}
