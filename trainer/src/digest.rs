//! A digest of the training state that does not depend on which worker holds which layer.
//!
//! Each layer's weights and moments are hashed where they are; the state's digest is the hash of
//! the layers' digests in model order and of the number of updates. Equal digests mean equal bits
//! everywhere.

use std::fmt;
use std::ops::Range;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use zbelastic_kernels::HostThreads;
use zbelastic_types::{Digest, LayerId, Step};

/// Bytes of a leaf of the tree: subtrees begin at a multiple of it.
pub(crate) const HASHED_CHUNK_LEN: u64 = blake3::CHUNK_LEN as u64;
/// Bytes that a thread hashes at once, where several hash one layer.
pub(crate) const LEAF_BYTES: u64 = 1 << 20;

/// The digest of the whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateDigest(pub [u8; 32]);

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Bytes of layer and version, which a layer's digest begins with.
pub(crate) const HASHED_HEAD_LEN: usize = 12;

/// Bytes that the digest of a layer of so many floats is over.
pub(crate) const fn hashed_bytes(floats: u64) -> u64 {
    HASHED_HEAD_LEN as u64 + 4 * floats
}

/// What a layer's digest begins with.
pub(crate) fn hashed_head(layer: LayerId, version: Step) -> [u8; HASHED_HEAD_LEN] {
    let mut head = [0; HASHED_HEAD_LEN];
    head[..4].copy_from_slice(&layer.0.to_le_bytes());
    head[4..].copy_from_slice(&version.0.to_le_bytes());
    head
}

/// Makes the digest of a layer as it travels: of its id, its version, then weights and moments.
#[derive(Debug)]
pub(crate) struct LayerHasher(blake3::Hasher);

impl LayerHasher {
    pub(crate) fn new(layer: LayerId, version: Step) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&hashed_head(layer, version));
        Self(hasher)
    }

    /// Hashes the bytes of floats that follow, as they travel.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Hashes floats as they travel, least significant byte first. Whole slices where that is how they
    /// lie: the hash works on many pieces of one slice at once.
    pub(crate) fn update_floats(&mut self, floats: &[f32]) {
        if cfg!(target_endian = "little") {
            self.update(bytemuck::cast_slice(floats));
        } else {
            floats.iter().for_each(|x| self.update(&x.to_le_bytes()));
        }
    }

    pub(crate) fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

/// The digest of `parts` one behind the other, of more than [`LEAF_BYTES`], on all threads of the host.
pub(crate) fn hash_parts(host: &HostThreads, parts: &[&[u8]]) -> Digest {
    let len = parts.iter().map(|part| part.len() as u64).sum();
    let tree = HashSubtrees { len, cut: 0, max: LEAF_BYTES };
    let ranges = tree.ranges();
    let mut values = vec![[0; 32]; ranges.len()];
    let tasks = ranges.into_iter().zip(&mut values).collect();
    host.for_each(tasks, |(range, value): (Range<u64>, &mut ChainingValue)| {
        *value = subtree_value(parts, range);
    });
    tree.root(values)
}

/// The subtrees that a BLAKE3 tree over `len` bytes is cut into, so that each is hashed apart from
/// the others (the specification of BLAKE3, section 2.1, and what the Bao format calls a slice).
/// None lies on both sides of byte `cut`, a multiple of [`HASHED_CHUNK_LEN`]; none has more than
/// `max` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashSubtrees {
    pub(crate) len: u64,
    pub(crate) cut: u64,
    pub(crate) max: u64,
}

impl HashSubtrees {
    /// The bytes of each, in order.
    pub(crate) fn ranges(self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        self.split(0..self.len, &mut ranges);
        ranges
    }

    /// The digest of all bytes, from the chaining values of [`Self::ranges`], of which there are at
    /// least two.
    ///
    /// # Panics
    /// If there are fewer values than subtrees, or the tree is not cut.
    pub(crate) fn root(self, values: impl IntoIterator<Item = ChainingValue>) -> Digest {
        let left_len = left_subtree_len(self.len);
        let mut values = values.into_iter();
        let left = self.merged(0..left_len, &mut values);
        let right = self.merged(left_len..self.len, &mut values);
        Digest(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
    }

    fn is_apart(self, range: &Range<u64>) -> bool {
        let is_on_one_side = range.end <= self.cut || range.start >= self.cut;
        is_on_one_side && range.end - range.start <= self.max
    }

    fn split(self, range: Range<u64>, ranges: &mut Vec<Range<u64>>) {
        if self.is_apart(&range) {
            return ranges.push(range);
        }
        let middle = range.start + left_subtree_len(range.end - range.start);
        self.split(range.start..middle, ranges);
        self.split(middle..range.end, ranges);
    }

    fn merged(
        self,
        range: Range<u64>,
        values: &mut impl Iterator<Item = ChainingValue>,
    ) -> ChainingValue {
        if self.is_apart(&range) {
            return values.next().expect("a value for each subtree");
        }
        let middle = range.start + left_subtree_len(range.end - range.start);
        let left = self.merged(range.start..middle, values);
        let right = self.merged(middle..range.end, values);
        merge_subtrees_non_root(&left, &right, Mode::Hash)
    }
}

/// Makes the chaining value of a subtree.
#[derive(Debug)]
pub(crate) struct SubtreeHasher(blake3::Hasher);

impl SubtreeHasher {
    /// Of the subtree whose first byte is at `start`.
    pub(crate) fn new(start: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(start);
        Self(hasher)
    }

    /// Hashes the bytes that follow.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> ChainingValue {
        self.0.finalize_non_root()
    }
}

/// The chaining value of a subtree over `range`, if `parts` lie one behind the other.
fn subtree_value(parts: &[&[u8]], range: Range<u64>) -> ChainingValue {
    let mut hasher = SubtreeHasher::new(range.start);
    let mut start = 0;
    for part in parts {
        let end = start + part.len() as u64;
        let from = range.start.clamp(start, end);
        let to = range.end.clamp(start, end);
        hasher.update(&part[(from - start) as usize..(to - start) as usize]);
        start = end;
    }
    hasher.finish()
}

/// The state's digest from the digests of all its layers, in model order, each as it travels.
///
/// So the digests of a checkpoint's layers give the state's digest, without reading a float.
#[must_use]
pub fn state_digest(layers: impl IntoIterator<Item = Digest>, updates: u64) -> StateDigest {
    let mut hasher = blake3::Hasher::new();
    for layer in layers {
        hasher.update(&layer.0);
    }
    hasher.update(&updates.to_le_bytes());
    StateDigest(*hasher.finalize().as_bytes())
}
