//! A piece of a checkpoint that comes from another node, written as it arrives: only its chunks
//! that are not whole yet are in memory, however large the layer. It counts as kept once the digest
//! of all that was written is the one in the request to keep it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use zbelastic_checkpoint::{
    CHUNK_BYTES, CheckpointStore, CheckpointStoreError, ChunkHash, PieceRecord,
};
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_trainer::elastic::{ChainingValue, ImageDigester, ImageError};
use zbelastic_transport::ChunkSink;
use zbelastic_types::Digest;

use crate::piece::PieceRef;
use crate::work_counter::WorkCounter;

/// Why the bytes that came are not kept.
#[derive(Debug, thiserror::Error)]
pub enum PieceError {
    /// The store refuses it.
    #[error(transparent)]
    Store(#[from] CheckpointStoreError),
    /// It is no layer.
    #[error("it is no layer: {0}")]
    Image(#[from] ImageError),
    /// It is another layer, or another state of it.
    #[error("a state with digest {expected} was announced, {found} came")]
    Digest {
        /// The digest in the request to keep the piece.
        expected: Digest,
        /// The digest of the bytes that came.
        found: Digest,
    },
    /// Bytes of it are missing.
    #[error("{found} of {expected} bytes came")]
    Incomplete {
        /// Length of the piece in the request, in bytes.
        expected: u64,
        /// Number of bytes that came.
        found: u64,
    },
}

/// Writes a piece chunk by chunk. If it is dropped before [`Self::finish`], the chunks that it
/// wrote may be removed.
pub struct PieceSink<S: CheckpointStore> {
    /// Chunks that are written and not durable yet. Dropped before the store: it may be opened again
    /// once nobody has it, and removes the files of transfers then.
    transfer: S::UnnamedChunks,
    store: Arc<S>,
    piece: PieceRef,
    /// Chunks that are whole, by their place.
    whole: BTreeMap<u64, ChunkHash>,
    /// Chunks of which some bytes are missing, with how many came.
    partial: BTreeMap<u64, (Vec<u8>, usize)>,
    /// The memory of the last chunk that was whole: fresh pages would have to be cleared for the
    /// next.
    spare: Vec<u8>,
    /// Hashes the state as chunks become whole, as long as they do in order.
    digester: ImageDigester,
    /// Chunks that it has hashed.
    hashed: u64,
    written: WorkCounter,
}

impl<S: CheckpointStore> PieceSink<S> {
    /// A sink for a piece; bytes that the store accepted are counted in `written`.
    #[must_use]
    pub fn new(store: Arc<S>, piece: PieceRef, written: WorkCounter) -> Self {
        let digester = ImageDigester::new(piece.length);
        let transfer = S::UnnamedChunks::default();
        let whole = BTreeMap::new();
        let partial = BTreeMap::new();
        let spare = Vec::new();
        Self { transfer, store, piece, whole, partial, spare, digester, hashed: 0, written }
    }

    /// A chunk is whole: it is hashed, if those before it were, and written.
    fn keep_chunk(&mut self, index: u64, chunk: Vec<u8>) -> io::Result<()> {
        if index == self.hashed {
            self.digester.push(&chunk).map_err(io::Error::other)?;
            self.hashed += 1;
        }
        let put = self.store.put_new_chunk(&chunk, &mut self.transfer);
        let hash = put.map_err(io::Error::other)?;
        self.written.add(chunk.len() as u64);
        self.whole.insert(index, hash);
        self.spare = chunk;
        Ok(())
    }

    /// Memory for a chunk of so many bytes, with any bytes in it.
    fn memory(&mut self, len: usize) -> Vec<u8> {
        let mut chunk = std::mem::take(&mut self.spare);
        chunk.resize(len, 0);
        chunk
    }

    /// Bytes of the chunk at this place.
    fn chunk_len(&self, index: u64) -> usize {
        let left = self.piece.length.saturating_sub(index * CHUNK_BYTES as u64);
        left.min(CHUNK_BYTES as u64) as usize
    }

    fn record(&self) -> PieceRecord {
        let chunks = self.whole.values().copied().collect();
        PieceRecord { length: self.piece.length, chunks }
    }

    /// Compares the digest, and gives the piece its name. Yields the chaining values of the
    /// layer's moments, which were made on the way.
    ///
    /// # Errors
    /// If it is not the piece that was announced, or the store refuses it.
    pub fn finish(mut self) -> Result<Vec<ChainingValue>, PieceError> {
        let expected = self.piece.length;
        let record = self.record();
        let found = (0..).take(record.chunks.len()).map(|index| self.chunk_len(index) as u64).sum();
        if found != expected {
            return Err(PieceError::Incomplete { expected, found });
        }
        self.store.name_chunks(std::mem::take(&mut self.transfer))?;
        for hash in record.chunks.iter().skip(self.hashed as usize) {
            self.digester.push(&self.store.chunk(*hash)?)?;
        }
        let digester = std::mem::replace(&mut self.digester, ImageDigester::new(0));
        let expected = self.piece.digest;
        let (found, moments) = digester.finish_with_moments()?;
        if expected != found && !mutant::is(Mutant::M38DigestUnchecked) {
            return Err(PieceError::Digest { expected, found });
        }
        self.store.put_record(self.piece.name(), &record)?;
        Ok(moments)
    }
}

impl<S: CheckpointStore> Drop for PieceSink<S> {
    fn drop(&mut self) {
        self.store.abandon(&self.record());
    }
}

impl<S: CheckpointStore + 'static> ChunkSink for PieceSink<S> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = offset;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let index = at / CHUNK_BYTES as u64;
            let start = (at % CHUNK_BYTES as u64) as usize;
            let len = self.chunk_len(index);
            if start >= len {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let (now, later) = bytes.split_at(bytes.len().min(len - start));
            let begun = self.partial.remove(&index);
            let (mut chunk, filled) = begun.unwrap_or_else(|| (self.memory(len), 0));
            chunk[start..start + now.len()].copy_from_slice(now);
            match filled + now.len() {
                filled if filled == len => self.keep_chunk(index, chunk)?,
                filled => drop(self.partial.insert(index, (chunk, filled))),
            }
            (at, bytes) = (at + now.len() as u64, later);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use zbelastic_checkpoint::InMemoryStore;
    use zbelastic_trainer::elastic::{LayerImage, layer_digest};
    use zbelastic_types::{LayerId, RunId, Step};

    use super::*;

    /// A layer of two chunks and a bit.
    pub(crate) fn layer() -> (PieceRef, Vec<u8>) {
        let len = 2 * CHUNK_BYTES / 12 + 100;
        let floats = |start: usize| (start..start + len).map(|i| i as f32 * 0.5).collect();
        let w = floats(1);
        let m = floats(2);
        let v = floats(3);
        let image = LayerImage { layer: LayerId(3), version: Step(9), w, m, v };
        let bytes = image.encode();
        let digest = layer_digest(&image);
        let length = bytes.len() as u64;
        (PieceRef { run: RunId(1), version: Step(9), layer: LayerId(3), digest, length }, bytes)
    }

    fn sink(store: &Arc<InMemoryStore>, piece: PieceRef) -> PieceSink<InMemoryStore> {
        PieceSink::new(store.clone(), piece, WorkCounter::default())
    }

    /// Writes in pieces as the bulk lane does, the later half first.
    fn write(sink: &mut PieceSink<InMemoryStore>, bytes: &[u8]) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        let pieces: Vec<_> = bytes.chunks(PIECE).enumerate().collect();
        let (first, second) = pieces.split_at(pieces.len() / 2);
        let mut all = second.iter().chain(first);
        all.try_for_each(|(index, bytes)| sink.write((index * PIECE) as u64, bytes))
    }

    #[test]
    fn a_piece_that_came_in_any_order_is_there_as_it_was() {
        let store = Arc::new(InMemoryStore::new());
        let (piece, bytes) = layer();
        let mut sink = sink(&store, piece);
        write(&mut sink, &bytes).expect("space");
        assert!(sink.partial.is_empty());
        assert_eq!(sink.written.total(), piece.length);
        sink.finish().expect("the layer");
        assert!(store.get(piece.name()).expect("there") == bytes);
    }

    #[test]
    fn what_is_not_the_layer_that_was_announced_is_not_kept() {
        let store = Arc::new(InMemoryStore::new());
        let (piece, mut bytes) = layer();
        bytes[CHUNK_BYTES + 7] ^= 1;
        let mut other = sink(&store, piece);
        write(&mut other, &bytes).expect("space");
        let error = other.finish().expect_err("one bit differs");
        assert!(matches!(error, PieceError::Digest { expected, .. } if expected == piece.digest));
        let mut short = sink(&store, piece);
        write(&mut short, &bytes[..CHUNK_BYTES]).expect("space");
        assert!(matches!(short.finish(), Err(PieceError::Incomplete { .. })));
        let mut long = sink(&store, piece);
        assert!(long.write(piece.length, &[0]).is_err(), "behind its end");
        assert_eq!(store.record(piece.name()).expect("readable"), None);
        let inventory = store.inventory().expect("readable");
        assert!(inventory.under_way.is_empty(), "what was written of it may go");
    }
}
