//! Token stores: folders of shards that training reads.
//!
//! A shard is one file: its ids, then where documents end among them, then, if some do not count in
//! the loss, a bit for each. `docs/token-store.md` has the bytes.

mod layout;
mod manifest;
mod mapped_shard;
mod present_chunks;
mod shard_writer;

pub use manifest::{MANIFEST_NAME, ManifestFault, ShardRecord, StoreManifest, shard_name};

pub(crate) use manifest::{FORMAT_VERSION, SHARD_EXTENSION, SHARDS_MAX};
pub(crate) use shard_writer::ShardWriter;

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::checked_json::CheckedJsonError;
use layout::ShardLayout;
use mapped_shard::MappedShard;
use present_chunks::chunks_of;

/// Bytes of a file that are hashed at once; a multiple of an id's.
const HASH_BYTES: u64 = 1 << 20;
/// Bytes of a store's pages that are in memory at most, by the estimate of [`READ_PAGES_BYTES`].
const RESIDENT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of pages that a read has in memory beside its ids: the system maps 64 KiB around a page
/// that is read, at both ends of the window, in its loss mask, and where documents end.
const READ_PAGES_BYTES: u64 = 4 * (64 << 10);

/// A store with its shards mapped into memory.
///
/// Ids of a store are numbered from 0 through all its shards, and so are documents.
#[derive(Debug)]
pub struct TokenStore {
    manifest: StoreManifest,
    /// Shards, each with the number of its first id and of its first document.
    shards: Vec<PlacedShard>,
    /// Bytes of a chunk of a shard that arrives.
    chunk_bytes: u64,
    /// Bytes of pages that were read since they were given back last.
    resident_bytes: AtomicU64,
}

#[derive(Debug)]
struct PlacedShard {
    first_token: u64,
    first_document: u64,
    /// Once its file is mapped.
    shard: OnceLock<MappedShard>,
}

/// A chunk of a shard, by their indices in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardChunk {
    /// Index of the shard.
    pub shard: usize,
    /// Index of the chunk in the shard.
    pub chunk: u64,
}

/// Why a store cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The manifest cannot be read.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// Path of the manifest.
        path: PathBuf,
        /// The error of the file.
        source: CheckedJsonError,
    },
    /// The manifest contradicts itself.
    #[error("{}: {source}", path.display())]
    Content {
        /// Path of the manifest.
        path: PathBuf,
        /// The fault of its content.
        source: ManifestFault,
    },
    /// A shard cannot be opened or mapped.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// Path of the shard.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A shard is truncated, or longer than it was written.
    #[error("{}: has {found} bytes, expected {expected}", path.display())]
    Length {
        /// Path of the shard.
        path: PathBuf,
        /// Length of the file.
        found: u64,
        /// Length by the manifest.
        expected: u64,
    },
    /// A shard has other bytes than were written.
    #[error("{}: has hash {found}, expected {expected}", path.display())]
    Hash {
        /// Path of the shard.
        path: PathBuf,
        /// BLAKE3 of the file.
        found: blake3::Hash,
        /// The hash in the manifest.
        expected: blake3::Hash,
    },
    /// The ends of a shard's documents do not grow, or lie beyond its ids.
    #[error("{}: document {document} ends at id {found}, expected one in {expected:?}", path.display())]
    DocumentEnd {
        /// Path of the shard.
        path: PathBuf,
        /// Number of the document in the shard.
        document: u64,
        /// Where it ends by the shard.
        found: u64,
        /// Where it may end.
        expected: Range<u64>,
    },
    /// The last document does not end.
    #[error("{}: the last document does not end with the last id", path.display())]
    OpenDocument {
        /// Path of the last shard.
        path: PathBuf,
    },
    /// An id is not below the size of the vocabulary.
    #[error("{}: id {found} is outside a vocabulary of {vocabulary}", path.display())]
    Vocabulary {
        /// Path of the shard.
        path: PathBuf,
        /// The id.
        found: u32,
        /// Tokens of the vocabulary.
        vocabulary: u32,
    },
    /// Ids of a shard were requested that are not here yet.
    #[error("ids {expected:?} of shard {shard} were read before they arrived")]
    Absent {
        /// Index of the shard.
        shard: usize,
        /// The ids that were requested, numbered from the beginning of the shard.
        expected: Range<u64>,
    },
    /// Ids beyond the last were requested.
    #[error("ids {expected:?} were requested of {found}")]
    Range {
        /// The ids that were requested.
        expected: Range<u64>,
        /// Ids of the store.
        found: u64,
    },
}

/// Ids of a store with their documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSpan {
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each id, the number of its document in the store.
    pub documents: Vec<u64>,
    /// For each id, whether it counts in the loss as a target.
    pub loss_mask: Vec<bool>,
}

impl TokenStore {
    /// Maps the shards of the store in `folder`. Their lengths are checked, and that the last
    /// document ends; each read checks the ids and ends that it reads, [`Self::verify`] all. So the
    /// time to open a store grows with the number of its shards, not with their length.
    ///
    /// The files must not be truncated while they are mapped: the system would end the process
    /// (SIGBUS).
    ///
    /// # Errors
    /// If the manifest or a shard is missing, damaged, or does not fit the others.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let manifest = StoreManifest::read(folder)?;
        let paths = (0..manifest.shards.len()).map(|index| folder.join(shard_name(index)));
        let paths = paths.collect();
        Self::of_shards(manifest, paths)
    }

    /// Maps the shards of a manifest that lie under other names, in the order of the manifest.
    ///
    /// # Errors
    /// As [`Self::open`].
    ///
    /// # Panics
    /// If there are more or fewer paths than shards.
    pub fn of_shards(manifest: StoreManifest, paths: Vec<PathBuf>) -> Result<Self, StoreError> {
        assert_eq!(paths.len(), manifest.shards.len(), "each shard has a path");
        let store = Self::arriving(manifest, u64::MAX)?;
        for (index, path) in paths.into_iter().enumerate() {
            store.map_whole(index, path)?;
        }
        if let Some(last) = store.shards.last().and_then(|placed| placed.shard.get()) {
            last.check_last_document_ends()?;
        }
        Ok(store)
    }

    /// A store of which no shard is here yet; shards arrive in chunks of so many bytes.
    ///
    /// # Errors
    /// If the manifest contradicts itself.
    pub fn arriving(manifest: StoreManifest, chunk_bytes: u64) -> Result<Self, StoreError> {
        manifest
            .check()
            .map_err(|source| StoreError::Content { path: MANIFEST_NAME.into(), source })?;
        let mut shards = Vec::new();
        let mut first_token = 0;
        let mut first_document = 0;
        for record in &manifest.shards {
            shards.push(PlacedShard { first_token, first_document, shard: OnceLock::new() });
            first_token += record.tokens;
            first_document += record.documents;
        }
        Ok(Self { manifest, shards, chunk_bytes, resident_bytes: AtomicU64::new(0) })
    }

    /// Maps a shard that is whole, unless it is mapped.
    ///
    /// # Errors
    /// If it cannot be mapped, or has another length.
    pub fn map_whole(&self, shard: usize, path: PathBuf) -> Result<(), StoreError> {
        let record = &self.manifest.shards[shard];
        let mapped = MappedShard::open(path, record, self.manifest.vocabulary)?;
        let _ = self.shards[shard].shard.set(mapped);
        Ok(())
    }

    /// Maps the file of a shard that arrives, unless the shard is mapped. None of its chunks counts as
    /// here before [`Self::note_chunk`].
    ///
    /// # Errors
    /// If it cannot be mapped, or has another length.
    pub fn map_arriving(
        &self,
        shard: usize,
        file: Arc<File>,
        path: PathBuf,
    ) -> Result<(), StoreError> {
        let record = &self.manifest.shards[shard];
        let vocabulary = self.manifest.vocabulary;
        let mapped = MappedShard::arriving((file, path), record, vocabulary, self.chunk_bytes)?;
        let _ = self.shards[shard].shard.set(mapped);
        Ok(())
    }

    /// Whether the file of a shard is mapped.
    #[must_use]
    pub fn is_mapped(&self, shard: usize) -> bool {
        self.shards[shard].shard.get().is_some()
    }

    /// A chunk was written to the file of its shard, behind a comparison with its hash.
    pub fn note_chunk(&self, ShardChunk { shard, chunk }: ShardChunk) {
        if let Some(mapped) = self.shards[shard].shard.get() {
            mapped.note_chunk(chunk);
        }
    }

    /// The bytes of a chunk go, if they lie in a file that chunks are fetched into. Yields whether they
    /// were here.
    pub(crate) fn forget_chunk(&self, ShardChunk { shard, chunk }: ShardChunk) -> bool {
        self.shards[shard].shard.get().is_some_and(|mapped| mapped.forget_chunk(chunk))
    }

    /// Whether chunks of a shard are fetched, and it is no file that was whole when it was mapped.
    pub(crate) fn arrives(&self, shard: usize) -> bool {
        self.shards[shard].shard.get().is_none_or(MappedShard::arrives)
    }

    /// Bytes of a chunk of a shard that arrives; the last one of a shard may have fewer.
    pub(crate) const fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Whether a chunk is here.
    #[must_use]
    pub fn has_chunk(&self, ShardChunk { shard, chunk }: ShardChunk) -> bool {
        self.shards[shard].shard.get().is_some_and(|mapped| mapped.has_chunk(chunk))
    }

    /// Whether all chunks of a shard are here.
    #[must_use]
    pub fn has_shard(&self, shard: usize) -> bool {
        let length = self.manifest.shard_bytes().nth(shard).unwrap_or(0);
        let mut chunks = 0..length.div_ceil(self.chunk_bytes);
        chunks.all(|chunk| self.has_chunk(ShardChunk { shard, chunk }))
    }

    /// All chunks, in the order of the ids.
    pub fn chunks(&self) -> impl Iterator<Item = ShardChunk> {
        let lengths = self.manifest.shard_bytes().enumerate();
        lengths.flat_map(|(shard, length)| {
            let chunks = 0..length.div_ceil(self.chunk_bytes);
            chunks.map(move |chunk| ShardChunk { shard, chunk })
        })
    }

    /// The chunks that a read of these ids touches.
    pub fn chunks_of(&self, tokens: Range<u64>) -> impl Iterator<Item = ShardChunk> {
        self.shards_of(tokens).flat_map(|(shard, tokens)| {
            let record = &self.manifest.shards[shard];
            let layout = ShardLayout::of(record, self.manifest.vocabulary);
            let chunks = layout.bytes_of(&tokens).map(|bytes| chunks_of(&bytes, self.chunk_bytes));
            chunks.into_iter().flatten().map(move |chunk| ShardChunk { shard, chunk })
        })
    }

    /// The chunks in which documents' ends lie, of all shards.
    pub(crate) fn chunks_of_ends(&self) -> impl Iterator<Item = ShardChunk> {
        self.manifest.shards.iter().enumerate().flat_map(|(shard, record)| {
            let layout = ShardLayout::of(record, self.manifest.vocabulary);
            let chunks = chunks_of(&layout.ends, self.chunk_bytes);
            chunks.map(move |chunk| ShardChunk { shard, chunk })
        })
    }

    /// Whether all is here that a read of these ids touches.
    #[must_use]
    pub fn has(&self, tokens: Range<u64>) -> bool {
        self.shards_of(tokens).all(|(shard, tokens)| {
            self.shards[shard].shard.get().is_some_and(|mapped| mapped.has(&tokens))
        })
    }

    /// The shards that these ids lie in, each with its part of them, numbered from its first.
    fn shards_of(&self, tokens: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let after = self.shards.partition_point(|placed| placed.first_token <= tokens.start);
        let first = after.saturating_sub(1);
        let placed = self.shards.iter().zip(&self.manifest.shards).enumerate().skip(first);
        let placed = placed.take_while(move |(_, (placed, _))| placed.first_token < tokens.end);
        placed.map(move |(shard, (placed, record))| {
            let start = tokens.start.max(placed.first_token) - placed.first_token;
            (shard, start..(tokens.end - placed.first_token).min(record.tokens))
        })
    }

    /// The content of the store.
    #[must_use]
    pub fn manifest(&self) -> &StoreManifest {
        &self.manifest
    }

    /// Number of ids.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.manifest.tokens()
    }

    /// Number of documents.
    #[must_use]
    pub fn documents(&self) -> u64 {
        self.manifest.documents()
    }

    /// Compares the hash of every shard with the manifest's, its ids with the vocabulary, and checks
    /// that ends of documents grow.
    ///
    /// # Errors
    /// With the first shard that has other bytes, such an id, or ends that do not grow.
    pub fn verify(&self) -> Result<(), StoreError> {
        self.shard_faults(|_| {}).next().map_or(Ok(()), Err)
    }

    /// The same of all shards: what is wrong with each that is not sound, in their order. `on_bytes` is called with
    /// the bytes that were read so far, of [`Self::shard_bytes`].
    pub fn shard_faults(&self, mut on_bytes: impl FnMut(u64)) -> impl Iterator<Item = StoreError> {
        let pairs = self.shards.iter().zip(&self.manifest.shards);
        let mapped = pairs.filter_map(|(placed, record)| Some((placed.shard.get()?, record)));
        let mut read = 0;
        mapped.filter_map(move |(shard, record)| {
            let mut count = |bytes| {
                read += bytes;
                on_bytes(read);
            };
            shard.verify(record, &mut count).err()
        })
    }

    /// Bytes of all shards.
    #[must_use]
    pub fn shard_bytes(&self) -> u64 {
        self.manifest.shard_bytes().sum()
    }

    /// Reads ids with their documents and loss mask.
    ///
    /// # Errors
    /// If there are no such ids, one is outside the vocabulary, ends of documents do not grow, or a
    /// shard was truncated.
    pub fn read(&self, tokens: Range<u64>) -> Result<TokenSpan, StoreError> {
        if tokens.start > tokens.end || tokens.end > self.tokens() {
            return Err(StoreError::Range { expected: tokens, found: self.tokens() });
        }
        let mut span = TokenSpan::default();
        for (shard, tokens) in self.shards_of(tokens) {
            let placed = &self.shards[shard];
            let mapped = placed.shard.get().filter(|mapped| mapped.has(&tokens));
            let Some(mapped) = mapped else {
                return Err(StoreError::Absent { shard, expected: tokens });
            };
            mapped.check_length()?;
            let bytes = (tokens.end - tokens.start) * layout::id_bytes(self.manifest.vocabulary);
            mapped.read(tokens, placed.first_document, &mut span)?;
            self.note_read(bytes);
        }
        Ok(span)
    }

    /// Pages of a store stay in memory up to a limit, however large it is.
    fn note_read(&self, bytes: u64) {
        let more = bytes + READ_PAGES_BYTES;
        if self.resident_bytes.fetch_add(more, Ordering::Relaxed) + more > RESIDENT_BYTES_MAX {
            self.resident_bytes.store(0, Ordering::Relaxed);
            let mapped = self.shards.iter().filter_map(|placed| placed.shard.get());
            mapped.for_each(MappedShard::release);
        }
    }
}

/// The path of a shard in a store with this content in one of the folders, if the shard is sound.
/// `on_bytes` gets the bytes that are hashed for that, piece by piece.
pub fn find_shard(
    manifest: &StoreManifest,
    shard: usize,
    folders: &[String],
    on_bytes: &dyn Fn(u64),
) -> Option<PathBuf> {
    let folder = folders.iter().map(Path::new).find(|folder| {
        let is_there = folder.join(MANIFEST_NAME).exists();
        is_there && StoreManifest::read(folder).is_ok_and(|found| found == *manifest)
    })?;
    let path = folder.join(shard_name(shard));
    let found = hash_file(&path, on_bytes);
    found.is_ok_and(|found| found == manifest.shards[shard].hash).then_some(path)
}

/// BLAKE3 of a file of any length, read by pieces of a mebibyte; `on_bytes` gets the length of each.
///
/// # Errors
/// If it cannot be read.
pub fn hash_file(path: &Path, on_bytes: &dyn Fn(u64)) -> io::Result<blake3::Hash> {
    hash_pieces(path, &mut |piece| on_bytes(piece.len() as u64))
}

/// The same; `on_piece` gets each piece, of which all but the last have [`HASH_BYTES`].
fn hash_pieces(path: &Path, on_piece: &mut dyn FnMut(&[u8])) -> io::Result<blake3::Hash> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = Vec::with_capacity(HASH_BYTES as usize);
    loop {
        buffer.clear();
        let count = file.by_ref().take(HASH_BYTES).read_to_end(&mut buffer)?;
        if count == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&buffer);
        on_piece(&buffer);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::manifest::SHARD_TOKENS_MAX;
    use super::{
        FORMAT_VERSION, ManifestFault, ShardRecord, StoreError, StoreManifest, TokenStore,
    };
    use crate::checked_json;
    use crate::source::SourceCounts;

    fn record(tokens: u64, documents: u64) -> ShardRecord {
        ShardRecord { tokens, documents, has_loss_mask: false, hash: blake3::hash(b"") }
    }

    /// A store whose manifest has a valid checksum, and one shard with these bytes.
    fn open(
        folder: &Path,
        manifest: &StoreManifest,
        shard: &[u8],
    ) -> Result<TokenStore, StoreError> {
        std::fs::write(folder.join("00000.shard"), shard).expect("writable");
        checked_json::write(&folder.join("manifest.json"), manifest).expect("writable");
        TokenStore::open(folder)
    }

    fn manifest(shards: Vec<ShardRecord>) -> StoreManifest {
        StoreManifest {
            version: FORMAT_VERSION,
            tokenizer: blake3::hash(b""),
            vocabulary: 300,
            end_of_text: Some(299),
            sources: SourceCounts::default(),
            shards,
        }
    }

    #[test]
    fn manifests_that_contradict_themselves_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let check = |manifest: StoreManifest, expected: ManifestFault| match open(
            folder.path(),
            &manifest,
            b"",
        ) {
            Err(StoreError::Content { source, .. }) => assert_eq!(source, expected),
            other => panic!("{other:?}"),
        };
        let one = || manifest(vec![record(1, 1)]);
        let fault = ManifestFault::Version { found: 2, expected: 1 };
        check(StoreManifest { version: 2, ..one() }, fault);
        check(StoreManifest { vocabulary: 0, ..one() }, ManifestFault::Vocabulary);
        let fault = ManifestFault::EndOfText { found: 300, vocabulary: 300 };
        check(StoreManifest { end_of_text: Some(300), ..one() }, fault);
        let max = SHARD_TOKENS_MAX;
        for (tokens, documents) in [(0, 0), (1, 2), (max + 1, 1), (u64::MAX, u64::MAX)] {
            let fault = ManifestFault::ShardSize { shard: 0, tokens, documents, max };
            check(manifest(vec![record(tokens, documents)]), fault);
        }
    }

    #[test]
    fn shards_that_contradict_the_manifest_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let shard = |ids: &[u16], ends: &[u32]| {
            let ids = ids.iter().flat_map(|id| id.to_le_bytes());
            ids.chain(ends.iter().flat_map(|end| end.to_le_bytes())).collect::<Vec<_>>()
        };
        let open = |ids: &[u16], ends: &[u32]| {
            let shard = shard(ids, ends);
            let record = record(ids.len() as u64, ends.len() as u64);
            let record = ShardRecord { hash: blake3::hash(&shard), ..record };
            open(folder.path(), &manifest(vec![record]), &shard)
        };
        let store = open(&[1, 2, 299], &[1, 3]).expect("whole");
        assert_eq!(store.read(0..3).expect("whole").documents, [0, 1, 1]);
        store.verify().expect("whole");
        let mut read = Vec::new();
        assert_eq!(store.shard_faults(|bytes| read.push(bytes)).count(), 0);
        assert!(read.is_sorted() && read.last() == Some(&store.shard_bytes()), "{read:?}");
        for ends in [[2, 2, 4], [3, 1, 4], [1, 9, 4]] {
            let store = open(&[1, 2, 3, 4], &ends).expect("ends are not read when it is opened");
            for found in [store.read(0..4).err(), store.verify().err()] {
                assert!(
                    matches!(found, Some(StoreError::DocumentEnd { .. })),
                    "{ends:?} {found:?}"
                );
            }
        }
        let store = open(&[1, 2, 3], &[0, 3]).expect("ends are not read when it is opened");
        assert!(matches!(store.verify(), Err(StoreError::DocumentEnd { found: 0, .. })));
        assert!(matches!(open(&[1, 2, 3], &[1, 4]), Err(StoreError::OpenDocument { .. })));
        assert!(matches!(open(&[1, 2], &[1]), Err(StoreError::OpenDocument { .. })));
        assert!(matches!(open(&[1, 2], &[]), Err(StoreError::OpenDocument { .. })));
        let error = open(&[1, 300], &[2]).expect("whole").read(0..2).expect_err("no such id");
        assert!(matches!(error, StoreError::Vocabulary { found: 300, .. }), "{error}");
    }
}
