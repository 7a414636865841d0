//! The holder's side: one stream, any number of requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task;
use tokio::time::timeout;

use super::body::BulkBody;
use super::wire::{Answer, HASH_BYTES, Request, RequestFault, chunk_bytes, chunk_count};

/// How many chunks are read and hashed ahead of the one that is written.
const AHEAD_CHUNKS: usize = 2;
/// How long a chunk may take to be written. A peer that takes less than a chunk in this time is
/// left alone: it would hold a thread and three chunks of memory.
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

/// Answers requests until the peer ends the stream. `find` gives what a key names.
///
/// # Errors
/// If the peer asks for what nobody may ask, the stream fails, or what is held cannot be read.
pub async fn serve<R, W, F>(reader: R, mut writer: W, find: F) -> Result<Served, ServeBulkError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    F: Fn(&[u8]) -> Option<Arc<dyn BulkBody>>,
{
    let mut reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
    let mut served = Served::default();
    while let Some(request) = Request::read(&mut reader).await? {
        let request = request?;
        let Some(body) = find(&request.key) else {
            write(&mut writer, &Answer::UnknownKey.encode()).await?;
            writer.flush().await?;
            continue;
        };
        serve_range(&mut writer, &request, body, &mut served).await?;
        writer.flush().await?;
    }
    Ok(served)
}

async fn serve_range<W>(
    writer: &mut W,
    request: &Request,
    body: Arc<dyn BulkBody>,
    served: &mut Served,
) -> Result<(), ServeBulkError>
where
    W: AsyncWrite + Unpin,
{
    let length = body.len();
    let Request { first, count, .. } = *request;
    let end = first.checked_add(count).filter(|end| count > 0 && *end <= chunk_count(length));
    let Some(end) = end else {
        return write(writer, &Answer::NoSuchRange { length }.encode()).await;
    };
    write(writer, &Answer::Here { length }.encode()).await?;
    let (full, mut ready) = mpsc::channel(AHEAD_CHUNKS);
    let (empty, mut spare) = mpsc::channel(AHEAD_CHUNKS + 2);
    task::spawn_blocking(move || {
        for chunk in first..end {
            let buffer = spare.try_recv().unwrap_or_default();
            if full.blocking_send(prepare(&*body, length, chunk, buffer)).is_err() {
                break;
            }
        }
    });
    while let Some(prepared) = ready.recv().await {
        let buffer = prepared?;
        write(writer, &buffer).await?;
        served.chunks += 1;
        served.bytes += (buffer.len() - HASH_BYTES) as u64;
        // Without a receiver the last chunk is under way: the buffer is needed no more.
        let _ = empty.try_send(buffer);
    }
    Ok(())
}

/// The hash of a chunk and the chunk, in a buffer that may have held another.
fn prepare(
    body: &dyn BulkBody,
    length: u64,
    chunk: u64,
    mut buffer: Vec<u8>,
) -> Result<Vec<u8>, ServeBulkError> {
    buffer.resize(HASH_BYTES + chunk_bytes(length, chunk), 0);
    let (hash, bytes) = buffer.split_at_mut(HASH_BYTES);
    let read = body.read(chunk * super::wire::CHUNK_BYTES as u64, bytes);
    read.map_err(|source| ServeBulkError::Body { chunk, source })?;
    hash.copy_from_slice(blake3::hash(bytes).as_bytes());
    Ok(buffer)
}

async fn write<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> Result<(), ServeBulkError> {
    let written = timeout(WRITE_DEADLINE, writer.write_all(bytes)).await;
    Ok(written.map_err(|_| ServeBulkError::Stalled)??)
}
