//! The holder's side: one stream, any number of requests, answered one after another.
//!
//! Chunks are read and hashed on threads that may block, a few ahead of the one that is written.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::task::{self, JoinHandle};
use tokio::time::timeout;

use super::body::BulkBody;
use super::wire::{
    Answer, CHUNK_BYTES, HASH_BYTES, Request, RequestFault, chunk_bytes, chunk_count,
};

/// How many chunks are read and hashed ahead of the one that is written.
const AHEAD_CHUNKS: usize = 2;
/// How long a chunk may take to be written. A peer that takes less than a chunk in this time is
/// left alone: it holds [`AHEAD_CHUNKS`] and one more in memory.
const WRITE_DEADLINE: Duration = Duration::from_secs(60);
/// What is read ahead of requests.
const READ_AHEAD_BYTES: usize = 1024;

/// What was served on a stream until its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The chunks.
    pub chunks: u64,
    /// The bytes of the chunks.
    pub bytes: u64,
}

/// Why a stream was given up.
#[derive(Debug, Error)]
pub enum ServeBulkError {
    /// The peer asked for what nobody may ask.
    #[error(transparent)]
    Refused(#[from] RequestFault),
    /// What is held cannot be read.
    #[error("chunk {chunk} cannot be read")]
    Body {
        /// Which chunk.
        chunk: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The peer takes nothing.
    #[error("the peer took too little for too long")]
    Stalled,
    /// The stream failed.
    #[error("the stream failed")]
    Stream(#[from] io::Error),
}

/// Answers requests until the peer ends the stream. `find` gives what a key names, and is called
/// on a thread that may block.
///
/// # Errors
/// If the peer asks for what nobody may ask, the stream fails, or what is held cannot be read.
pub async fn serve<R, W, F>(reader: R, mut writer: W, find: F) -> Result<Served, ServeBulkError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    F: Fn(&[u8]) -> Option<Arc<dyn BulkBody>> + Clone + Send + 'static,
{
    let mut reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
    let mut served = Served::default();
    while let Some(request) = Request::read(&mut reader).await? {
        let Request { key, first, count } = request?;
        let find = find.clone();
        let body = finished(task::spawn_blocking(move || find(&key))).await;
        let (answer, range) = answer(body.as_deref(), first, count);
        write(&mut writer, &answer.encode()).await?;
        if let Some(body) = body {
            serve_chunks(&mut writer, &body, range, &mut served).await?;
        }
        writer.flush().await?;
    }
    Ok(served)
}

/// What to say to a request, and which chunks follow.
fn answer(body: Option<&dyn BulkBody>, first: u64, count: u64) -> (Answer, Range<u64>) {
    let Some(body) = body else {
        return (Answer::UnknownKey, 0..0);
    };
    let length = body.len();
    match first.checked_add(count) {
        Some(end) if count > 0 && end <= chunk_count(length) => {
            (Answer::Here { length }, first..end)
        }
        Some(_) | None => (Answer::NoSuchRange { length }, 0..0),
    }
}

async fn serve_chunks<W>(
    writer: &mut W,
    body: &Arc<dyn BulkBody>,
    mut range: Range<u64>,
    served: &mut Served,
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
            let (body, buffer) = (Arc::clone(body), spare.pop().unwrap_or_default());
            ahead.push_back(task::spawn_blocking(move || prepare(&*body, chunk, buffer)));
        }
        let Some(first) = ahead.pop_front() else {
            return Ok(());
        };
        let buffer = finished(first).await?;
        write(writer, &buffer).await?;
        served.chunks += 1;
        served.bytes += (buffer.len() - HASH_BYTES) as u64;
        spare.push(buffer);
    }
}

async fn finished<T>(task: JoinHandle<T>) -> T {
    task.await.expect("what a body or a source does on its thread does not panic")
}

/// The hash of a chunk and the chunk, in a buffer that may have held another.
fn prepare(
    body: &dyn BulkBody,
    chunk: u64,
    mut buffer: Vec<u8>,
) -> Result<Vec<u8>, ServeBulkError> {
    buffer.resize(HASH_BYTES + chunk_bytes(body.len(), chunk), 0);
    let (hash, bytes) = buffer.split_at_mut(HASH_BYTES);
    let read = body.read(chunk * CHUNK_BYTES as u64, bytes);
    read.map_err(|source| ServeBulkError::Body { chunk, source })?;
    hash.copy_from_slice(blake3::hash(bytes).as_bytes());
    Ok(buffer)
}

async fn write<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> Result<(), ServeBulkError> {
    let written = timeout(WRITE_DEADLINE, writer.write_all(bytes)).await;
    Ok(written.map_err(|_| ServeBulkError::Stalled)??)
}
