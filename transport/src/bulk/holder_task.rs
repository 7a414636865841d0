//! One holder's stream: a task that requests chunks and reads them. Requests go out as ranges come
//! in, while earlier answers are still read.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::check::ChunkCheck;
use super::error::HolderError;
use super::sink::VerifiedChunk;
use super::spare::SpareChunks;
use super::streams::{ChunkReader, RequestWriter};
use super::wire::ChunkRequest;

/// Time within which a stream to a holder must open. A liveness bound of the network: a connection
/// with a silent peer ends after as long, and a local socket is accepted at once.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// How long a holder that owes chunks may send no byte at all. A rule about progress: however slow
/// a path is, bytes keep arriving on it. Covers the holder's search for the requested body.
const SILENT_WITHIN: Duration = Duration::from_secs(30);

/// A range of chunks to request.
pub(super) type ChunkRange = Range<u64>;

/// A report of a task about its holder.
#[derive(Debug)]
pub(super) enum HolderTaskReport {
    /// A chunk came whole.
    Chunk { holder: usize, verified: VerifiedChunk },
    /// A chunk came whole, and is not the one that was meant.
    Unsound { holder: usize, chunk: u64 },
    /// The last report: why the task ended.
    Ended { holder: usize, error: HolderError },
}

/// The parameters that a task is started with.
pub(super) struct HolderTaskSetup {
    pub(super) holder: usize,
    pub(super) key: Vec<u8>,
    pub(super) length: u64,
    pub(super) ranges: mpsc::Receiver<ChunkRange>,
    pub(super) reports: mpsc::Sender<HolderTaskReport>,
    pub(super) spare: SpareChunks,
    /// What every chunk is compared with.
    pub(super) check: Option<Arc<dyn ChunkCheck>>,
    /// Resolves when another holder should continue in its place.
    pub(super) overtaken: oneshot::Receiver<()>,
}

/// Requests ranges on the stream that `opening` gives, until something fails or the fetch is over.
pub(super) async fn run<F, R, W>(mut setup: HolderTaskSetup, opening: F)
where
    F: Future<Output = io::Result<(R, W)>>,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let error = match setup.open(opening).await {
        Ok((reader, writer)) => setup.work(reader, writer).await,
        Err(error) => error,
    };
    let ended = HolderTaskReport::Ended { holder: setup.holder, error };
    // Without a receiver the fetch is over.
    let _ = setup.reports.send(ended).await;
}

impl HolderTaskSetup {
    async fn open<F, S>(&mut self, opening: F) -> Result<S, HolderError>
    where
        F: Future<Output = io::Result<S>>,
    {
        tokio::select! {
            opened = timeout(OPEN_WITHIN, opening) => {
                opened.map_err(|_| HolderError::Stalled)?.map_err(HolderError::Unreachable)
            }
            _ = &mut self.overtaken => Err(HolderError::Overtaken),
        }
    }

    /// Works until something fails, and returns the failure.
    async fn work<R, W>(&mut self, reader: R, writer: W) -> HolderError
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut chunk_reader = ChunkReader::new(reader, self.length, self.spare.clone());
        let mut request_writer = RequestWriter::new(writer);
        let mut silent_until = Instant::now() + SILENT_WITHIN;
        loop {
            tokio::select! {
                _ = &mut self.overtaken => return HolderError::Overtaken,
                range = self.ranges.recv() => {
                    // Without a sender the fetch is over, and the value returned here is not read.
                    let Some(range) = range else { return HolderError::Overtaken };
                    if !chunk_reader.is_waiting() {
                        silent_until = Instant::now() + SILENT_WITHIN;
                    }
                    let first = range.start;
                    let count = range.end - range.start;
                    request_writer.push(&ChunkRequest { key: self.key.clone(), first, count });
                    chunk_reader.expect(range);
                }
                sent = request_writer.send(), if request_writer.is_waiting() => {
                    if let Err(error) = sent { return HolderError::Stream(error) }
                }
                read = chunk_reader.read(), if chunk_reader.is_waiting() => {
                    let verified = match read {
                        Ok(verified) => verified,
                        Err(error) => return error,
                    };
                    if let Some(verified) = verified {
                        self.report(verified).await;
                    }
                    // Behind the report, since a sink that is slow is not the holder's silence.
                    silent_until = Instant::now() + SILENT_WITHIN;
                }
                () = sleep_until(silent_until), if chunk_reader.is_waiting() => {
                    return HolderError::Stalled;
                }
            }
        }
    }

    async fn report(&self, verified: VerifiedChunk) {
        let VerifiedChunk { chunk, bytes } = &verified;
        let is_sound = self.check.as_ref().is_none_or(|check| check.is_sound(*chunk, bytes));
        let report = if is_sound {
            HolderTaskReport::Chunk { holder: self.holder, verified }
        } else {
            HolderTaskReport::Unsound { holder: self.holder, chunk: *chunk }
        };
        // Without a receiver the fetch is over.
        let _ = self.reports.send(report).await;
    }
}
