//! Scrubbing: the items on a node's disk are read again now and then, so that corrupt items are
//! found and fetched again while other nodes have them undamaged. Pieces of checkpoints chunk by
//! chunk, texts and weights as a whole.

use std::collections::VecDeque;

use zbelastic_checkpoint::{CHUNK_BYTES, CheckpointStore, PieceName, PieceRecord};
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::Digest;

use crate::data::DataName;
use crate::piece::PieceRef;

/// Texts and weights as they lie on a node's disk, each under the hash that its bytes should have.
pub trait DataFileAccess {
    /// One of them, opened. An item that replaces it meanwhile changes nothing about it.
    type File;

    /// All that are there.
    fn list(&self) -> Vec<Digest>;

    /// Opens one and returns it with its length in bytes; `None` if that cannot be done.
    fn open(&self, hash: Digest) -> Option<(Self::File, u64)>;

    /// Reads from an offset on as much as fits. Returns whether it could.
    fn read_at(file: &Self::File, offset: u64, into: &mut [u8]) -> bool;
}

/// Something that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorruptItem {
    /// A piece of a checkpoint.
    Piece {
        /// Name and length of the damaged piece.
        piece: PieceRef,
        /// Error that reading its chunk returned, as text.
        reason: String,
    },
    /// A text, or weights: as long as this, and of another hash.
    Data(DataName),
}

/// Something that is to be read.
enum ScrubItem {
    Piece(PieceName),
    Data(Digest),
}

/// The item that is being read, and the position in it.
enum ScrubRead<F> {
    Piece { name: PieceName, record: PieceRecord, next: usize },
    Data { name: DataName, file: F, at: u64, hasher: Box<blake3::Hasher> },
}

/// Passes over all that a node holds, a chunk at a time.
pub struct Scrubber<D: DataFileAccess> {
    data: D,
    items: VecDeque<ScrubItem>,
    reading: Option<ScrubRead<D::File>>,
    /// How many items of the first pass come last: a machine that is there for an hour begins
    /// elsewhere each time.
    turned: u64,
}

impl<D: DataFileAccess> Scrubber<D> {
    /// A scrub with a first pass that begins behind so many items, or as many less as there are.
    #[must_use]
    pub const fn new(data: D, turned: u64) -> Self {
        Self { data, items: VecDeque::new(), reading: None, turned }
    }

    /// Whether no pass is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.items.is_empty() && self.reading.is_none()
    }

    /// Reads the next chunk. Returns the item that is found corrupt.
    pub fn step(&mut self, store: &impl CheckpointStore) -> Option<CorruptItem> {
        if self.reading.is_none() {
            self.reading = self.next(store);
        }
        let corrupt = match self.reading.take()? {
            ScrubRead::Piece { name, record, next } => self.read_piece(store, (name, record), next),
            ScrubRead::Data { name, file, at, hasher } => self.read_data((name, file), at, hasher),
        };
        corrupt.filter(|_| !mutant::is(Mutant::M33ScrubIsSilent))
    }

    fn next(&mut self, store: &impl CheckpointStore) -> Option<ScrubRead<D::File>> {
        if self.items.is_empty() {
            let names = store.names().ok()?;
            self.items = names.into_iter().map(ScrubItem::Piece).collect();
            self.items.extend(self.data.list().into_iter().map(ScrubItem::Data));
            let count = self.items.len().max(1) as u64;
            self.items.rotate_left((std::mem::take(&mut self.turned) % count) as usize);
        }
        match self.items.pop_front()? {
            ScrubItem::Piece(name) => {
                let record = store.record(name).ok()??;
                Some(ScrubRead::Piece { name, record, next: 0 })
            }
            ScrubItem::Data(hash) => {
                let (file, length) = self.data.open(hash)?;
                let name = DataName { hash, length };
                Some(ScrubRead::Data { name, file, at: 0, hasher: Box::default() })
            }
        }
    }

    fn read_piece(
        &mut self,
        store: &impl CheckpointStore,
        (name, record): (PieceName, PieceRecord),
        next: usize,
    ) -> Option<CorruptItem> {
        let hash = *record.chunks.get(next)?;
        match store.chunk(hash) {
            Ok(_) => {
                self.reading = Some(ScrubRead::Piece { name, record, next: next + 1 });
                None
            }
            // An item that was removed meanwhile is not damaged.
            Err(_) if matches!(store.record(name), Ok(None)) => None,
            Err(error) => {
                let piece = PieceRef::of(name, record.length);
                Some(CorruptItem::Piece { piece, reason: error.to_string() })
            }
        }
    }

    fn read_data(
        &mut self,
        (name, file): (DataName, D::File),
        at: u64,
        mut hasher: Box<blake3::Hasher>,
    ) -> Option<CorruptItem> {
        let mut bytes = vec![0; (name.length - at).min(CHUNK_BYTES as u64) as usize];
        let is_read = D::read_at(&file, at, &mut bytes);
        hasher.update(&bytes);
        let at = at + bytes.len() as u64;
        if is_read && at < name.length {
            self.reading = Some(ScrubRead::Data { name, file, at, hasher });
            return None;
        }
        let is_sound = is_read && hasher.finalize().as_bytes() == &name.hash.0;
        (!is_sound).then_some(CorruptItem::Data(name))
    }
}
