//! Scrubbing: the items on a node's disk are read again now and then, so that corrupt items are
//! found and fetched again while other nodes have them undamaged. Pieces of checkpoints chunk by
//! chunk, texts and weights as a whole.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use zbelastic_checkpoint::{CHUNK_BYTES, CheckpointStore, PieceName, PieceRecord};
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{Bytes, Digest};

use crate::data::DataName;
use crate::data_chunks::{ChunkHasher, ChunkHashes, ChunkSize};
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

    /// Keeps the hashes of the chunks of one that is sound, if they are not there: should it be
    /// damaged later, it is mended chunk by chunk.
    fn keep_hashes(&self, hashes: &ChunkHashes);
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

/// How far a pass is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// Bytes that it has read, or that were removed meanwhile.
    pub done: Bytes,
    /// Bytes that there were when it began.
    pub total: Bytes,
    /// Items that it found damaged.
    pub corrupt: u64,
}

/// The last pass that read everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPass {
    /// When it ended, in seconds since 1970.
    pub ended_s: u64,
    /// Bytes that it read.
    pub total: Bytes,
    /// Items that it found damaged.
    pub corrupt: u64,
}

/// The passes over a node's disk, as the node reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// The pass under way.
    pub progress: ScrubProgress,
    /// The last one that ended, also in an earlier start of the node.
    pub last: Option<ScrubPass>,
}

/// Something that is to be read.
enum ScrubItem {
    Piece(PieceName),
    Data(Digest),
}

/// The item that is being read, and the position in it.
enum ScrubRead<F> {
    Piece { name: PieceName, record: PieceRecord, next: usize },
    Data { name: DataName, file: F, at: u64, hasher: ChunkHasher },
}

impl<F> ScrubRead<F> {
    /// Bytes that are yet to be read.
    fn left(&self) -> u64 {
        match self {
            Self::Piece { record, next, .. } => {
                record.length.saturating_sub((next * CHUNK_BYTES) as u64)
            }
            Self::Data { name, at, .. } => name.length - at,
        }
    }
}

/// Passes over all that a node holds, a chunk at a time.
pub struct Scrubber<D: DataFileAccess> {
    data: D,
    /// What the pass is yet to read, each with its length.
    items: VecDeque<(ScrubItem, u64)>,
    /// Bytes of all of these.
    waiting: u64,
    reading: Option<ScrubRead<D::File>>,
    /// Bytes that there were when the pass began.
    total: u64,
    /// Items that the pass found damaged.
    corrupt: u64,
    /// Whether the pass lists the pieces of a store, and read the record of each that it came to.
    has_pieces: bool,
    /// How many items of the first pass come last: a machine that is there for an hour begins
    /// elsewhere each time.
    turned: u64,
}

impl<D: DataFileAccess> Scrubber<D> {
    /// A scrub with a first pass that begins behind so many items, or as many less as there are.
    #[must_use]
    pub const fn new(data: D, turned: u64) -> Self {
        let items = VecDeque::new();
        let has_pieces = false;
        Self { data, items, waiting: 0, reading: None, total: 0, corrupt: 0, has_pieces, turned }
    }

    /// How far the pass is, or the last one if none is under way.
    #[must_use]
    pub fn progress(&self) -> ScrubProgress {
        let left = self.waiting + self.reading.as_ref().map_or(0, ScrubRead::left);
        let done = Bytes(self.total.saturating_sub(left));
        ScrubProgress { done, total: Bytes(self.total), corrupt: self.corrupt }
    }

    /// Whether no pass is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.items.is_empty() && self.reading.is_none()
    }

    /// Whether a pass has ended that read everything. One without a store, or of a store that could not be read, has
    /// read the texts and weights only.
    #[must_use]
    pub fn has_read_all(&self) -> bool {
        self.is_idle() && self.total > 0 && self.has_pieces
    }

    /// Reads the next chunk; of texts and weights also while the node has no store. Returns the item that is found
    /// corrupt.
    pub fn step(&mut self, store: Option<&impl CheckpointStore>) -> Option<CorruptItem> {
        if self.reading.is_none() {
            self.reading = self.next(store);
        }
        let corrupt = match self.reading.take()? {
            ScrubRead::Piece { name, record, next } => self.read_piece(store, (name, record), next),
            ScrubRead::Data { name, file, at, hasher } => self.read_data((name, file), at, hasher),
        };
        self.corrupt += u64::from(corrupt.is_some());
        corrupt.filter(|_| !mutant::is(Mutant::M33ScrubIsSilent))
    }

    /// Begins a pass over all that there is: without the pieces, if no store can list them.
    fn begin_pass(&mut self, store: Option<&impl CheckpointStore>) {
        self.corrupt = 0;
        let names = store.and_then(|store| store.names().ok());
        self.has_pieces = names.is_some();
        let record = |name| store.and_then(|store| store.record(name).ok().flatten());
        let piece_length = |name| record(name).map_or(0, |found| found.length);
        let pieces = names.unwrap_or_default().into_iter();
        self.items = pieces.map(|name| (ScrubItem::Piece(name), piece_length(name))).collect();
        for hash in self.data.list() {
            let length = self.data.open(hash).map_or(0, |(_, length)| length);
            self.items.push_back((ScrubItem::Data(hash), length));
        }
        let count = self.items.len().max(1) as u64;
        self.items.rotate_left((std::mem::take(&mut self.turned) % count) as usize);
        self.total = self.items.iter().map(|(_, length)| length).sum();
        self.waiting = self.total;
    }

    fn next(&mut self, store: Option<&impl CheckpointStore>) -> Option<ScrubRead<D::File>> {
        if self.items.is_empty() {
            self.begin_pass(store);
        }
        let (item, length) = self.items.pop_front()?;
        self.waiting -= length;
        match item {
            ScrubItem::Piece(name) => {
                let found = store.and_then(|store| store.record(name).ok());
                self.has_pieces &= found.is_some();
                Some(ScrubRead::Piece { name, record: found??, next: 0 })
            }
            ScrubItem::Data(hash) => {
                let (file, length) = self.data.open(hash)?;
                let name = DataName { hash, length };
                Some(ScrubRead::Data {
                    name,
                    file,
                    at: 0,
                    hasher: ChunkHasher::new(ChunkSize::BULK),
                })
            }
        }
    }

    fn read_piece(
        &mut self,
        store: Option<&impl CheckpointStore>,
        (name, record): (PieceName, PieceRecord),
        next: usize,
    ) -> Option<CorruptItem> {
        self.has_pieces &= store.is_some();
        let store = store?;
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
        mut hasher: ChunkHasher,
    ) -> Option<CorruptItem> {
        let mut bytes = vec![0; (name.length - at).min(CHUNK_BYTES as u64) as usize];
        let is_read = D::read_at(&file, at, &mut bytes);
        hasher.update(&bytes);
        let at = at + bytes.len() as u64;
        if is_read && at < name.length {
            self.reading = Some(ScrubRead::Data { name, file, at, hasher });
            return None;
        }
        let hashes = hasher.finish();
        let is_sound = is_read && hashes.name() == name;
        if is_sound {
            self.data.keep_hashes(&hashes);
        }
        (!is_sound).then_some(CorruptItem::Data(name))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;

    use zbelastic_checkpoint::faults::{FileIndex, SimulatedDisk};
    use zbelastic_checkpoint::{CheckpointId, FolderStore};
    use zbelastic_types::{LayerId, RunId, Step};

    use super::*;

    #[derive(Default)]
    struct Texts(RefCell<BTreeMap<Digest, Vec<u8>>>);

    impl DataFileAccess for Texts {
        type File = Vec<u8>;

        fn list(&self) -> Vec<Digest> {
            self.0.borrow().keys().copied().collect()
        }

        fn open(&self, hash: Digest) -> Option<(Vec<u8>, u64)> {
            let bytes = self.0.borrow().get(&hash)?.clone();
            let length = bytes.len() as u64;
            Some((bytes, length))
        }

        fn read_at(file: &Vec<u8>, offset: u64, into: &mut [u8]) -> bool {
            into.copy_from_slice(&file[offset as usize..][..into.len()]);
            true
        }

        fn keep_hashes(&self, _: &ChunkHashes) {}
    }

    /// Steps to the end of a pass, and returns what it found.
    fn pass(
        scrubber: &mut Scrubber<Texts>,
        store: Option<&FolderStore<FileIndex>>,
    ) -> Vec<CorruptItem> {
        let mut found = Vec::from_iter(scrubber.step(store));
        while !scrubber.is_idle() {
            found.extend(scrubber.step(store));
        }
        found
    }

    #[test]
    fn texts_are_read_again_while_there_is_no_store_and_then_not_everything_is() {
        let disk = Arc::new(SimulatedDisk::new(Path::new("/node")));
        let store = FolderStore::<FileIndex>::open(disk, Path::new("/node/store")).expect("made");
        let version = CheckpointId { run: RunId(1), version: Step(4) };
        let name = PieceName { version, layer: LayerId(0), digest: Digest([7; 32]) };
        store.put(name, &[5; 100]).expect("space");
        let texts = Texts::default();
        let sound = DataName::of(b"a text");
        let rotten = DataName::of(b"another");
        texts.0.borrow_mut().insert(sound.hash, b"a text".to_vec());
        texts.0.borrow_mut().insert(rotten.hash, b"anothes".to_vec());
        let mut scrubber = Scrubber::new(texts, 0);
        assert_eq!(pass(&mut scrubber, None), [CorruptItem::Data(rotten)]);
        let ScrubProgress { done, total, corrupt } = scrubber.progress();
        assert_eq!((done, total, corrupt), (Bytes(13), Bytes(13), 1));
        assert!(!scrubber.has_read_all(), "no piece was");
        assert_eq!(pass(&mut scrubber, Some(&store)), [CorruptItem::Data(rotten)]);
        assert_eq!(scrubber.progress().total, Bytes(113));
        assert!(scrubber.has_read_all());
        // The store goes while its piece is read, or before.
        for before in [1, 0] {
            for _ in 0..before {
                assert_eq!(scrubber.step(Some(&store)), None);
            }
            assert_eq!(pass(&mut scrubber, None), [CorruptItem::Data(rotten)]);
            assert!(!scrubber.has_read_all());
        }
    }
}
