//! Pieces of checkpoints on their way to others.

use std::io;
use std::sync::{Arc, Mutex};

use zbelastic_checkpoint::{CHUNK_BYTES, CheckpointStore, PieceRecord};
use zbelastic_transport::BulkBody;

/// A piece as others fetch it: checked chunk by chunk as it is read.
pub struct PieceBody<S> {
    store: Arc<S>,
    record: PieceRecord,
    /// The chunk that was read last: readers go through a piece in order.
    last: Mutex<Option<(usize, Vec<u8>)>>,
}

impl<S: CheckpointStore> PieceBody<S> {
    /// The piece that `record` is of, of which nothing is read yet.
    #[must_use]
    pub const fn new(store: Arc<S>, record: PieceRecord) -> Self {
        Self { store, record, last: Mutex::new(None) }
    }

    /// Copies from the chunk at `index`, from `start` on, as much as there is and fits.
    fn copy(&self, index: usize, start: usize, into: &mut [u8]) -> io::Result<usize> {
        let mut last = self.last.lock().map_err(|_| io::Error::other("a reader panicked"))?;
        if last.as_ref().is_none_or(|(of, _)| *of != index) {
            let hash = self.record.chunks.get(index).ok_or(io::ErrorKind::UnexpectedEof)?;
            let mut bytes = last.take().map(|(_, bytes)| bytes).unwrap_or_default();
            self.store.chunk_into(*hash, &mut bytes).map_err(io::Error::other)?;
            *last = Some((index, bytes));
        }
        let (_, bytes) = last.as_ref().expect("read above");
        let count = into.len().min(bytes.len().saturating_sub(start));
        into[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }
}

impl<S: CheckpointStore + Send + Sync + 'static> BulkBody for PieceBody<S> {
    fn len(&self) -> u64 {
        self.record.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut at = offset as usize;
        let mut done = 0;
        while done < into.len() {
            let count = self.copy(at / CHUNK_BYTES, at % CHUNK_BYTES, &mut into[done..])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            (at, done) = (at + count, done + count);
        }
        Ok(())
    }
}
