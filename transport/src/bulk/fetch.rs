//! The fetching side.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zbelastic_types::NodeId;

use super::error::{BulkError, HolderError, HolderFailure};
use super::wire::{
    ANSWER_BYTES, Answer, BULK_BYTES_MAX, CHUNK_BYTES, HASH_BYTES, KEY_BYTES_MAX, Request,
    chunk_count,
};

/// The most holders that are asked. Those after them are not.
pub const HOLDERS_MAX: usize = 16;

/// What to fetch, and from whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkFetch {
    /// Who has it.
    pub holders: Vec<NodeId>,
    /// Its name there.
    pub key: Vec<u8>,
    /// How many bytes it has.
    pub length: u64,
}

/// Fetches from the holders that `open` opens a stream to. May be dropped at any time.
///
/// # Errors
/// If nothing can be asked for, or every holder failed.
pub async fn fetch<O, F, R, W>(request: BulkFetch, open: O) -> Result<Vec<u8>, BulkError>
where
    O: Fn(NodeId) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<(R, W)>> + Send,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let BulkFetch { holders, key, length } = request;
    if key.len() > KEY_BYTES_MAX {
        return Err(BulkError::KeyTooLong { found: key.len() });
    }
    if length > BULK_BYTES_MAX {
        return Err(BulkError::TooLong { found: length });
    }
    let mut bytes = vec![0; usize::try_from(length).expect("64 bit")];
    let mut failures = Vec::new();
    for holder in holders.into_iter().take(HOLDERS_MAX) {
        match from_one(holder, &key, &mut bytes, &open).await {
            Ok(()) => return Ok(bytes),
            Err(error) => failures.push(HolderFailure { holder, error }),
        }
    }
    if failures.is_empty() {
        return Err(BulkError::NoHolders);
    }
    Err(BulkError::NoHolderLeft { failures, arrived: 0, expected: chunk_count(length) })
}

async fn from_one<O, F, R, W>(
    holder: NodeId,
    key: &[u8],
    bytes: &mut [u8],
    open: &O,
) -> Result<(), HolderError>
where
    O: Fn(NodeId) -> F,
    F: Future<Output = io::Result<(R, W)>>,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let expected = bytes.len() as u64;
    let (mut reader, mut writer) = open(holder).await.map_err(HolderError::Unreachable)?;
    let request = Request { key: key.to_vec(), first: 0, count: chunk_count(expected) };
    writer.write_all(&request.encode()).await.map_err(HolderError::Stream)?;
    writer.flush().await.map_err(HolderError::Stream)?;
    let mut answer = [0; ANSWER_BYTES];
    reader.read_exact(&mut answer).await.map_err(HolderError::Stream)?;
    match Answer::decode(answer).map_err(|status| HolderError::NoAnswer { status })? {
        Answer::Here { length } if length == expected => {}
        Answer::Here { length } | Answer::NoSuchRange { length } => {
            return Err(HolderError::WrongLength { expected, found: length });
        }
        Answer::UnknownKey => return Err(HolderError::UnknownKey),
    }
    for (chunk, bytes) in bytes.chunks_mut(CHUNK_BYTES).enumerate() {
        let mut hash = [0; HASH_BYTES];
        reader.read_exact(&mut hash).await.map_err(HolderError::Stream)?;
        reader.read_exact(bytes).await.map_err(HolderError::Stream)?;
        if blake3::hash(bytes) != blake3::Hash::from_bytes(hash) {
            return Err(HolderError::Damaged { chunk: chunk as u64 });
        }
    }
    Ok(())
}
