//! Where the bytes of a fetch go, and the thread that writes them there.

use std::io;

use tokio::sync::mpsc;
use tokio::task::{self, JoinHandle};

use super::spare::SpareChunks;
use super::wire::CHUNK_BYTES;

/// The most verified chunks that wait for the sink. With this many, a slow sink slows the holders
/// down instead of filling memory: one chunk is written, the others bridge a pause of the sink.
pub(super) const SINK_AHEAD: usize = 4;

/// Receives the verified bytes of a fetch.
pub trait ChunkSink: Send + 'static {
    /// Writes the bytes of a chunk to `offset`. Called on a thread that may block, once for each
    /// chunk, in the order in which chunks were verified: that of their offsets if there is one holder, and
    /// any if there are several.
    ///
    /// # Errors
    /// If they cannot be kept. The fetch ends with the error.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

/// Memory that grows with the bytes that arrive.
#[derive(Debug, Default)]
pub struct MemorySink {
    bytes: Vec<u8>,
}

impl MemorySink {
    /// The bytes so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl ChunkSink for MemorySink {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let too_long = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let start = usize::try_from(offset).map_err(too_long)?;
        let end = start.checked_add(bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        let known = self.bytes.len();
        if end > known {
            let more = end - known;
            self.bytes.try_reserve(more).map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        if start == known {
            self.bytes.extend_from_slice(bytes);
            return Ok(());
        }
        self.bytes.resize(known.max(end), 0);
        self.bytes[start..end].copy_from_slice(bytes);
        Ok(())
    }
}

/// A chunk that matches its checksum.
#[derive(Debug)]
pub(super) struct VerifiedChunk {
    pub(super) chunk: u64,
    pub(super) bytes: Vec<u8>,
}

/// The thread that owns a sink while a fetch runs. Dropped, it ends after the chunk it writes.
pub(super) struct SinkThread<S> {
    chunks: mpsc::Sender<VerifiedChunk>,
    thread: JoinHandle<Result<S, io::Error>>,
}

impl<S: ChunkSink> SinkThread<S> {
    /// Starts the thread. Chunks that were written leave their memory to `spare`.
    pub(super) fn start(mut sink: S, spare: SpareChunks) -> Self {
        let (chunks, mut waiting) = mpsc::channel::<VerifiedChunk>(SINK_AHEAD);
        let thread = task::spawn_blocking(move || {
            while let Some(VerifiedChunk { chunk, bytes }) = waiting.blocking_recv() {
                sink.write(chunk * CHUNK_BYTES as u64, &bytes)?;
                spare.put(bytes);
            }
            Ok(sink)
        });
        Self { chunks, thread }
    }

    /// Gives it a chunk. `false` if the sink failed; [`SinkThread::finish`] returns the error.
    pub(super) async fn send(&self, chunk: VerifiedChunk) -> bool {
        self.chunks.send(chunk).await.is_ok()
    }

    /// The sink with all chunks that were given to it.
    pub(super) async fn finish(self) -> io::Result<S> {
        drop(self.chunks);
        self.thread.await.expect("a sink does not panic")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_at_their_offsets_whatever_order_they_come_in() {
        let mut sink = MemorySink::default();
        for (offset, bytes) in [(2_u64, [3, 4]), (6, [7, 8]), (0, [1, 2]), (4, [5, 6])] {
            sink.write(offset, &bytes).unwrap();
        }
        assert_eq!(sink.into_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[tokio::test]
    async fn memory_of_a_chunk_that_was_written_is_used_again() {
        let spare = SpareChunks::default();
        let thread = SinkThread::start(MemorySink::default(), spare.clone());
        let bytes = vec![7; 100];
        let address = bytes.as_ptr();
        assert!(thread.send(VerifiedChunk { chunk: 0, bytes }).await);
        assert_eq!(thread.finish().await.unwrap().into_bytes(), [7; 100]);
        let again = spare.take(100);
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn an_offset_beyond_all_memory_is_an_error() {
        let mut sink = MemorySink::default();
        assert!(sink.write(u64::MAX - 1, &[1]).is_err());
        assert!(sink.write(1 << 62, &[1]).is_err());
        assert!(sink.into_bytes().is_empty());
    }
}
