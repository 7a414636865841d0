//! The holder's side: one stream, any number of requests, answered one after another.
//!
//! Chunks are read on threads that may block, a few ahead of the one that is written, and their
//! checksums are computed there.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::task::{self, JoinHandle};
use tokio::time::timeout;

use super::body::BulkBody;
use super::wire::{
    CHUNK_BYTES, ChunkAnswer, ChunkRequest, ChunkRequestFault, chunk_bytes, chunk_count,
};

/// How many chunks are read ahead of the one that is written.
const AHEAD_CHUNKS: usize = 2;
/// How long a peer may read no byte at all of an answer. A rule about progress: a slow peer is
/// served for as long as it reads, one that stopped is left alone, since it holds [`AHEAD_CHUNKS`]
/// and one more in memory.
const UNREAD_WITHIN: Duration = Duration::from_secs(60);
/// Size in bytes of the buffer that requests are read into.
const READ_AHEAD_BYTES: usize = 1024;

/// The chunks and bytes that were served on a stream until its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeSummary {
    /// Number of chunks that were written.
    pub chunks: u64,
    /// Bytes of these chunks, without their checksums.
    pub bytes: u64,
}

/// Why a stream was given up.
#[derive(Debug, Error)]
pub enum ServeBulkError {
    /// The peer sent a malformed request.
    #[error(transparent)]
    Refused(#[from] ChunkRequestFault),
    /// The body cannot be read.
    #[error("chunk {chunk} cannot be read")]
    Body {
        /// Index of the chunk in the body.
        chunk: u64,
        /// The error of reading it.
        #[source]
        source: io::Error,
    },
    /// The peer read nothing for too long.
    #[error("the peer took nothing for too long")]
    Stalled,
    /// Reading from or writing to the stream failed.
    #[error("the stream failed")]
    Stream(#[from] io::Error),
}

/// Answers requests until the peer ends the stream. `find` gives the body that a key names, and is
/// called on a thread that may block.
///
/// # Errors
/// If the peer sends a malformed request, the stream fails, or the body cannot be read.
pub async fn serve<R, W, F>(
    reader: R,
    mut writer: W,
    find: F,
) -> Result<ServeSummary, ServeBulkError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    F: Fn(&[u8]) -> Option<Arc<dyn BulkBody>> + Clone + Send + 'static,
{
    let mut reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
    let mut served = ServeSummary::default();
    while let Some(request) = ChunkRequest::read(&mut reader).await? {
        let ChunkRequest { key, first, count } = request?;
        let find = find.clone();
        let body = finished(task::spawn_blocking(move || find(&key))).await;
        let (answer, range) = answer(body.as_deref(), first, count);
        write(&mut writer, &mut [IoSlice::new(&answer.encode())]).await?;
        if let Some(body) = body {
            serve_chunks(&mut writer, &body, range, &mut served).await?;
        }
        writer.flush().await?;
    }
    Ok(served)
}

/// The answer to a request, and which chunks follow.
fn answer(body: Option<&dyn BulkBody>, first: u64, count: u64) -> (ChunkAnswer, Range<u64>) {
    let Some(body) = body else {
        return (ChunkAnswer::UnknownKey, 0..0);
    };
    let length = body.len();
    match first.checked_add(count) {
        Some(end) if count > 0 && end <= chunk_count(length) => {
            (ChunkAnswer::Here { length }, first..end)
        }
        Some(_) | None => (ChunkAnswer::NoSuchRange { length }, 0..0),
    }
}

async fn serve_chunks<W>(
    writer: &mut W,
    body: &Arc<dyn BulkBody>,
    mut range: Range<u64>,
    served: &mut ServeSummary,
) -> Result<(), ServeBulkError>
where
    W: AsyncWrite + Unpin,
{
    let mut ahead = VecDeque::new();
    let mut spare = Vec::new();
    loop {
        while ahead.len() <= AHEAD_CHUNKS
            && let Some(chunk) = range.next()
        {
            let body = Arc::clone(body);
            let buffer = spare.pop().unwrap_or_default();
            ahead.push_back(task::spawn_blocking(move || prepare(&*body, chunk, buffer)));
        }
        let Some(first) = ahead.pop_front() else {
            return Ok(());
        };
        let PreparedChunk { chunk, checksum, buffer } = finished(first).await?;
        let bytes = lent(&**body, chunk).unwrap_or(&buffer);
        let head = checksum.to_le_bytes();
        write(writer, &mut [IoSlice::new(&head), IoSlice::new(bytes)]).await?;
        served.chunks += 1;
        served.bytes += bytes.len() as u64;
        spare.push(buffer);
    }
}

async fn finished<T>(task: JoinHandle<T>) -> T {
    task.await.expect("what a body or a source does on its thread does not panic")
}

/// A chunk that can be written.
struct PreparedChunk {
    chunk: u64,
    checksum: u32,
    /// Its bytes, if its body does not lend them.
    buffer: Vec<u8>,
}

/// Reads a chunk, if its body does not lend it, into a buffer that may have held another, and
/// computes its checksum.
fn prepare(
    body: &dyn BulkBody,
    chunk: u64,
    mut buffer: Vec<u8>,
) -> Result<PreparedChunk, ServeBulkError> {
    if let Some(bytes) = lent(body, chunk) {
        return Ok(PreparedChunk { chunk, checksum: crc32fast::hash(bytes), buffer });
    }
    buffer.resize(chunk_bytes(body.len(), chunk), 0);
    let read = body.read(chunk * CHUNK_BYTES as u64, &mut buffer);
    read.map_err(|source| ServeBulkError::Body { chunk, source })?;
    Ok(PreparedChunk { chunk, checksum: crc32fast::hash(&buffer), buffer })
}

fn lent(body: &dyn BulkBody, chunk: u64) -> Option<&[u8]> {
    body.lend(chunk * CHUNK_BYTES as u64, chunk_bytes(body.len(), chunk))
}

/// Writes all slices, in as few writes as the stream allows.
async fn write<W>(writer: &mut W, mut slices: &mut [IoSlice<'_>]) -> Result<(), ServeBulkError>
where
    W: AsyncWrite + Unpin,
{
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let written = timeout(UNREAD_WITHIN, writer.write_vectored(slices)).await;
        match written.map_err(|_| ServeBulkError::Stalled)?? {
            0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            written => IoSlice::advance_slices(&mut slices, written),
        }
    }
    Ok(())
}
