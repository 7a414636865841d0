//! A hash for each chunk of a text, of weights or of a shard. The name of such data is its BLAKE3, which
//! is the root of a tree of hashes: those of its chunks are nodes of this tree, so that a list of
//! them is compared with the name alone, wherever the list comes from, and each chunk with the list.

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use thiserror::Error;
use zbelastic_transport::ChunkCheck;
use zbelastic_transport::bulk::CHUNK_BYTES;
use zbelastic_types::Digest;

use crate::data::DataName;

/// Bytes of a chunk's hash in a list.
const HASH_BYTES: usize = 32;

/// Bytes of a chunk that has a hash of its own, but of the last: those of BLAKE3's own chunks times a
/// power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize(u64);

impl ChunkSize {
    /// That of the bulk lane.
    pub const BULK: Self = Self::of(CHUNK_BYTES as u64);

    /// A size in bytes.
    ///
    /// # Panics
    /// If it is no node of the tree.
    #[must_use]
    pub const fn of(bytes: u64) -> Self {
        assert!(bytes.is_power_of_two() && bytes >= blake3::CHUNK_LEN as u64);
        Self(bytes)
    }

    /// The bytes of a chunk.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Number of chunks of data of so many bytes.
    #[must_use]
    pub const fn count(self, length: u64) -> u64 {
        length.div_ceil(self.0)
    }

    /// Bytes of the list for data of so many bytes.
    #[must_use]
    pub const fn list_bytes(self, length: u64) -> u64 {
        self.count(length) * HASH_BYTES as u64
    }
}

/// Why bytes are not the list of the chunks of some data.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChunkListFault {
    /// Another number of hashes.
    #[error("a list of {found} bytes, expected {expected}")]
    Length {
        /// Bytes of a list for the data.
        expected: u64,
        /// Bytes that there are.
        found: usize,
    },
    /// Hashes of other data.
    #[error("a list of {found}, expected {expected}")]
    Root {
        /// The name of the data.
        expected: Digest,
        /// The name that the list gives.
        found: Digest,
    },
}

/// The hashes of the chunks of some data, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkHashes {
    size: ChunkSize,
    length: u64,
    /// Of a single chunk the hash of the data.
    hashes: Vec<ChainingValue>,
}

impl ChunkHashes {
    /// Those of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8], size: ChunkSize) -> Self {
        let mut hasher = ChunkHasher::new(size);
        hasher.update(bytes);
        hasher.finish()
    }

    /// Those of data that is one chunk, and needs no list: its name is its hash.
    #[must_use]
    pub fn of_name(name: DataName, size: ChunkSize) -> Option<Self> {
        let hashes = match size.count(name.length) {
            0 => Vec::new(),
            1 => vec![name.hash.0],
            _ => return None,
        };
        Some(Self { size, length: name.length, hashes })
    }

    /// Those in an encoded list, if they are those of the data with this name.
    ///
    /// # Errors
    /// If they are not.
    pub fn decode(name: DataName, bytes: &[u8], size: ChunkSize) -> Result<Self, ChunkListFault> {
        let expected = size.list_bytes(name.length);
        let (hashes, rest) = bytes.as_chunks::<HASH_BYTES>();
        if bytes.len() as u64 != expected || !rest.is_empty() {
            return Err(ChunkListFault::Length { expected, found: bytes.len() });
        }
        let hashes = Self { size, length: name.length, hashes: hashes.to_vec() };
        let (expected, found) = (name.hash, hashes.name().hash);
        if found == expected { Ok(hashes) } else { Err(ChunkListFault::Root { expected, found }) }
    }

    /// The list as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.hashes.concat()
    }

    /// The name of the data.
    #[must_use]
    pub fn name(&self) -> DataName {
        let hash = match &self.hashes[..] {
            [] => Digest(*blake3::hash(&[]).as_bytes()),
            [only] => Digest(*only),
            hashes => {
                let (left, right) = self.subtrees(hashes, self.length);
                Digest(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
            }
        };
        DataName { hash, length: self.length }
    }

    /// The two subtrees of more than one chunk, of so many bytes altogether.
    fn subtrees(&self, hashes: &[ChainingValue], length: u64) -> (ChainingValue, ChainingValue) {
        let left = left_subtree_len(length);
        let (before, behind) = hashes.split_at((left / self.size.0) as usize);
        (self.subtree(before, left), self.subtree(behind, length - left))
    }

    fn subtree(&self, hashes: &[ChainingValue], length: u64) -> ChainingValue {
        if let [only] = hashes {
            return *only;
        }
        let (left, right) = self.subtrees(hashes, length);
        merge_subtrees_non_root(&left, &right, Mode::Hash)
    }
}

impl ChunkCheck for ChunkHashes {
    fn is_sound(&self, chunk: u64, bytes: &[u8]) -> bool {
        let expected = usize::try_from(chunk).ok().and_then(|chunk| self.hashes.get(chunk));
        let end = self.length.min(chunk.saturating_add(1).saturating_mul(self.size.0));
        if expected.is_none() || end - chunk * self.size.0 != bytes.len() as u64 {
            return false;
        }
        let found = match self.hashes.len() {
            1 => *blake3::hash(bytes).as_bytes(),
            _ => subtree_hasher(self.size, chunk).update(bytes).finalize_non_root(),
        };
        expected == Some(&found)
    }
}

fn subtree_hasher(size: ChunkSize, chunk: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(chunk * size.0);
    hasher
}

/// Hashes data chunk by chunk, whatever parts it comes in.
#[derive(Clone, Debug)]
pub struct ChunkHasher {
    size: ChunkSize,
    length: u64,
    /// Of the whole chunks.
    hashes: Vec<ChainingValue>,
    /// Of the chunk that is under way.
    open: Box<Hasher>,
}

impl ChunkHasher {
    /// A hasher of no data yet.
    #[must_use]
    pub fn new(size: ChunkSize) -> Self {
        Self { size, length: 0, hashes: Vec::new(), open: Box::default() }
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // A chunk ends when it is known not to be the only one.
            if self.open.count() == self.size.0 {
                self.hashes.push(self.open.finalize_non_root());
                *self.open = subtree_hasher(self.size, self.hashes.len() as u64);
            }
            let room = usize::try_from(self.size.0 - self.open.count()).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.open.update(now);
            self.length += now.len() as u64;
            bytes = later;
        }
    }

    /// The hashes of all chunks.
    #[must_use]
    pub fn finish(mut self) -> ChunkHashes {
        if self.hashes.is_empty() && self.open.count() > 0 {
            self.hashes.push(*self.open.finalize().as_bytes());
        } else if self.open.count() > 0 {
            self.hashes.push(self.open.finalize_non_root());
        }
        ChunkHashes { size: self.size, length: self.length, hashes: self.hashes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ChunkSize = ChunkSize::of(2048);

    fn data(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn the_hashes_of_chunks_give_the_name_of_the_data() {
        for length in [0, 1, 1024, 2047, 2048, 2049, 4096, 6000, 8192, 8193, 11 * 2048 + 5] {
            let bytes = data(length);
            let hashes = ChunkHashes::of(&bytes, SIZE);
            let name = DataName::of(&bytes);
            assert_eq!(hashes.name(), name, "{length} bytes");
            let list = hashes.encode();
            assert_eq!(list.len() as u64, SIZE.list_bytes(length as u64));
            assert_eq!(ChunkHashes::decode(name, &list, SIZE).as_ref(), Ok(&hashes));
            let named = (length <= 2048).then_some(hashes.clone());
            assert_eq!(ChunkHashes::of_name(name, SIZE), named);
            for part in [1, 500, 2048, 5000] {
                let mut hasher = ChunkHasher::new(SIZE);
                bytes.chunks(part).for_each(|part| hasher.update(part));
                assert_eq!(hasher.finish(), hashes, "{length} bytes by {part}");
            }
        }
    }

    #[test]
    fn each_chunk_is_compared_by_itself_at_its_own_place() {
        let bytes = data(3 * 2048 + 100);
        let hashes = ChunkHashes::of(&bytes, SIZE);
        let chunks: Vec<&[u8]> = bytes.chunks(2048).collect();
        for (at, chunk) in chunks.iter().enumerate() {
            assert!(hashes.is_sound(at as u64, chunk));
            assert!(!hashes.is_sound(at as u64 + 1, chunk), "it is another's");
            assert!(!hashes.is_sound(at as u64, &chunk[1..]), "it is cut short");
            let mut rotten = chunk.to_vec();
            rotten[chunk.len() / 2] ^= 1;
            assert!(!hashes.is_sound(at as u64, &rotten));
        }
        assert!(!hashes.is_sound(u64::MAX, chunks[0]));
        let only = ChunkHashes::of(b"one chunk", SIZE);
        assert!(only.is_sound(0, b"one chunk") && !only.is_sound(0, b"two chunk"));
    }

    #[test]
    fn a_list_of_other_data_is_refused() {
        let bytes = data(5000);
        let name = DataName::of(&bytes);
        let mut list = ChunkHashes::of(&bytes, SIZE).encode();
        let fault = |list: &[u8]| ChunkHashes::decode(name, list, SIZE).expect_err("another list");
        assert!(matches!(fault(&list[1..]), ChunkListFault::Length { expected: 96, found: 95 }));
        let longer = [&list[..], &[0; 32]].concat();
        assert!(matches!(fault(&longer), ChunkListFault::Length { expected: 96, found: 128 }));
        list[40] ^= 1;
        assert!(matches!(fault(&list), ChunkListFault::Root { .. }));
    }
}
