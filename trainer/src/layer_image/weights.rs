//! The weights of a layer proved by the digest of all of it, without its moments.
//!
//! The digest of a layer is the root of a BLAKE3 tree over layer, version, weights and moments. A
//! reader with the weights, and the chaining values of the subtrees behind them, computes the same
//! root: no other weights can be given with values that lead to it (the specification of BLAKE3,
//! sections 2.1 and 5.1). So a model is exported without two thirds of a checkpoint's bytes being
//! sent.

use std::io;
use std::ops::Range;

use zbelastic_types::Digest;

use super::{HEADER_LEN, ImageError, LayerHeader, StateLen};
use crate::digest::{
    HASHED_CHUNK_LEN, HASHED_HEAD_LEN, HashSubtrees, SubtreeHasher, hashed_bytes, hashed_head,
};

/// Bytes of a subtree at most: one is hashed in some milliseconds, wherever its value is needed.
const SUBTREE_BYTES: u64 = 16 << 20;
/// Bytes read at once while a subtree is hashed: a chunk of a checkpoint.
const READ_BYTES: usize = 4 << 20;
/// An encoded layer has so many bytes more than its digest is over.
const ENCODED_MORE: u64 = (HEADER_LEN - HASHED_HEAD_LEN) as u64;

/// The value of a subtree of a BLAKE3 tree that is not its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainingValue(pub [u8; 32]);

/// Of an encoded layer of so many floats, how many bytes come before the first subtree without a weight:
/// those that are read for the weights.
#[must_use]
pub fn weights_end(len: StateLen) -> u64 {
    ENCODED_MORE + tree(len).cut
}

/// The subtrees behind the weights of an encoded layer of so many floats, as bytes of it, in order.
#[must_use]
pub fn moment_subtrees(len: StateLen) -> Vec<Range<u64>> {
    let tree = tree(len);
    let behind = tree.ranges().into_iter().filter(|range| range.start >= tree.cut);
    behind.map(|range| range.start + ENCODED_MORE..range.end + ENCODED_MORE).collect()
}

/// The chaining value of one of [`moment_subtrees`], whose bytes `read` reads from the offset that
/// it is given.
///
/// # Errors
/// If they cannot be read.
pub fn moment_value(
    subtree: Range<u64>,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<ChainingValue> {
    let mut hasher = SubtreeHasher::new(subtree.start - ENCODED_MORE);
    let mut at = subtree.start;
    let mut bytes = vec![0; (subtree.end - at).min(READ_BYTES as u64) as usize];
    while at < subtree.end {
        bytes.truncate((subtree.end - at).min(READ_BYTES as u64) as usize);
        read(at, &mut bytes)?;
        hasher.update(&bytes);
        at += bytes.len() as u64;
    }
    Ok(ChainingValue(hasher.finish()))
}

/// The chaining value of the subtree at `index` of [`moment_subtrees`] of an encoded layer that `read` reads, if it has so
/// many.
///
/// # Errors
/// If it cannot be read, or is no layer.
pub fn nth_moment_value(
    index: usize,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Option<ChainingValue>> {
    let mut header = [0; HEADER_LEN];
    read(0, &mut header)?;
    let len = StateLen::of_header(&header).map_err(io::Error::other)?;
    let subtree = moment_subtrees(len).into_iter().nth(index);
    subtree.map(|subtree| moment_value(subtree, read)).transpose()
}

/// Hashes an encoded layer with a subtree behind its weights, in order, up to where a subtree ends:
/// the bytes before the moments, or all of them.
#[derive(Debug)]
pub(super) struct PrefixHasher {
    tree: HashSubtrees,
    /// Ranges of the bytes that are hashed, one for each subtree.
    ranges: Vec<Range<u64>>,
    /// Of those that are whole.
    values: Vec<[u8; 32]>,
    /// Of the one that is not.
    hasher: SubtreeHasher,
    at: u64,
}

impl PrefixHasher {
    /// Hashes the first `pushed` bytes of the encoded layer: [`weights_end`], or all.
    pub(super) fn new(LayerHeader { layer, version, len }: LayerHeader, pushed: u64) -> Self {
        let tree = tree(len);
        let mut ranges = tree.ranges();
        ranges.retain(|range| range.end + ENCODED_MORE <= pushed);
        let values = Vec::with_capacity(ranges.len());
        let mut hasher = Self { tree, ranges, values, hasher: SubtreeHasher::new(0), at: 0 };
        hasher.update(&hashed_head(layer, version));
        hasher
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while let Some(range) = self.ranges.get(self.values.len())
            && !bytes.is_empty()
        {
            let left = range.end - self.at;
            let (now, later) = bytes.split_at(bytes.len().min(left as usize));
            self.hasher.update(now);
            (self.at, bytes) = (self.at + now.len() as u64, later);
            if self.at == range.end {
                self.values.push(self.hasher.finish());
                // The last subtree may end within a chunk, where no other one may begin.
                if self.values.len() < self.ranges.len() {
                    self.hasher = SubtreeHasher::new(self.at);
                }
            }
        }
    }

    /// The chaining values of the subtrees behind the weights that were hashed.
    pub(super) fn moment_values(&self) -> Vec<ChainingValue> {
        let hashed = self.ranges.iter().zip(&self.values);
        let behind = hashed.filter(|(range, _)| range.start >= self.tree.cut);
        behind.map(|(_, value)| ChainingValue(*value)).collect()
    }

    /// The digest of the layer whose subtrees behind the weights have these values.
    pub(super) fn finish_before(self, behind: &[ChainingValue]) -> Result<Digest, ImageError> {
        let Self { tree, ranges, values, .. } = self;
        let expected = tree.ranges().len() - ranges.len();
        let found = behind.len();
        if expected != found {
            return Err(ImageError::Values { expected, found });
        }
        Ok(tree.root(values.into_iter().chain(behind.iter().map(|value| value.0))))
    }
}

/// The tree of a layer's digest, cut behind the chunk that the last weight lies in.
fn tree(floats: StateLen) -> HashSubtrees {
    let len = hashed_bytes(floats.floats());
    let weights = (HASHED_HEAD_LEN + 4 * floats.weights) as u64;
    let cut = weights.next_multiple_of(HASHED_CHUNK_LEN).min(len);
    HashSubtrees { len, cut, max: SUBTREE_BYTES }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{LayerId, Step};

    use super::super::{ImageDigester, LayerAssembler, LayerImage, image_bytes, layer_digest};
    use super::*;

    fn image(StateLen { weights, moments }: StateLen) -> LayerImage {
        let part = |scale: f32, len| (0..len).map(|i| scale * i as f32).collect();
        let w = part(1.0, weights);
        let m = part(-0.5, moments);
        let v = part(0.25, moments);
        LayerImage { layer: LayerId(5), version: Step(1 << 40), w, m, v }
    }

    /// Layers of so many weights, with as many moments, with fewer and with none.
    fn lens(weights: impl IntoIterator<Item = usize>) -> impl Iterator<Item = StateLen> {
        let moments = |weights| [weights, weights / 3, 0].map(|moments| (weights, moments));
        let all = weights.into_iter().flat_map(moments);
        all.map(|(weights, moments)| StateLen { weights, moments })
    }

    fn len_of(bytes: &[u8]) -> StateLen {
        StateLen::of_header(bytes.first_chunk().expect("a header")).expect("a layer")
    }

    fn values(bytes: &[u8]) -> Vec<ChainingValue> {
        let read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&bytes[at as usize..][..into.len()]);
            Ok(())
        };
        let value = |index| nth_moment_value(index, read).expect("it is read");
        let count = moment_subtrees(len_of(bytes)).len();
        assert_eq!(value(count), None, "there are no more");
        (0..count).map(|index| value(index).expect("there are so many")).collect()
    }

    fn read(bytes: &[u8], piece: usize, behind: &[ChainingValue]) -> Result<Digest, ImageError> {
        let len = len_of(bytes);
        let mut assembler = LayerAssembler::of_weights(len);
        let front = &bytes[..weights_end(len) as usize];
        front.chunks(piece).try_for_each(|piece| assembler.push(piece))?;
        let read = assembler.finish_weights(behind)?;
        let (floats, _) = bytes[HEADER_LEN..].as_chunks::<4>();
        let expected = floats.iter().take(read.w.len()).map(|bytes| f32::from_le_bytes(*bytes));
        assert!(read.w.iter().copied().eq(expected), "the weights are those before the moments");
        Ok(read.digest)
    }

    #[test]
    fn weights_and_values_lead_to_the_digest_of_all() {
        let large = SUBTREE_BYTES as usize / 4;
        let weights = [0, 1, 80, 84, 85, 170, 253, 254, 509, 1000, 4093, 100_000, large + 3];
        for len in lens(weights) {
            let image = image(len);
            let bytes = image.encode();
            let expected = layer_digest(&image);
            let behind = values(&bytes);
            for piece in [7, 1024, 1 << 19] {
                assert_eq!(read(&bytes, piece, &behind), Ok(expected), "{len:?} floats by {piece}");
            }
        }
    }

    #[test]
    fn values_that_were_made_while_all_was_hashed_are_those_of_the_subtrees() {
        let large = SUBTREE_BYTES as usize / 4;
        for len in lens([0, 1, 84, 85, 254, 4093, 100_000, large + 3]) {
            let image = image(len);
            let bytes = image.encode();
            for piece in [1023, 1 << 19] {
                let mut digester = ImageDigester::new(bytes.len() as u64);
                bytes.chunks(piece).try_for_each(|bytes| digester.push(bytes)).expect("a layer");
                let expected = (layer_digest(&image), values(&bytes));
                assert_eq!(digester.finish_with_moments(), Ok(expected), "{len:?} by {piece}");
            }
        }
    }

    #[test]
    fn other_weights_moments_and_values_are_found() {
        let image = image(StateLen::full(5000));
        let bytes = image.encode();
        let expected = layer_digest(&image);
        let behind = values(&bytes);
        assert!(behind.len() > 1);
        let mut flipped = bytes.clone();
        flipped[HEADER_LEN + 4 * 4999] ^= 1;
        assert_ne!(read(&flipped, 1024, &behind), Ok(expected));
        let mut moments = bytes.clone();
        *moments.last_mut().expect("bytes") ^= 1;
        assert_ne!(read(&bytes, 1024, &values(&moments)), Ok(expected));
        let mut swapped = behind.clone();
        swapped.swap(0, 1);
        assert_ne!(read(&bytes, 1024, &swapped), Ok(expected));
        let short = &behind[1..];
        let len = behind.len();
        let wrong = ImageError::Values { expected: len, found: len - 1 };
        assert_eq!(read(&bytes, 1024, short), Err(wrong));
        let small = StateLen::full(3);
        assert_eq!((weights_end(small), moment_subtrees(small)), (image_bytes(small), Vec::new()));
        // As many bytes in all, of which other ones are weights.
        let other = StateLen { weights: 5002, moments: 4999 };
        let mut assembler = LayerAssembler::of_weights(other);
        let found = image_bytes(other);
        assert_eq!(found, bytes.len() as u64);
        let refused = Err(ImageError::Length { expected: found, found });
        assert_eq!(assembler.push(&bytes[..1024]), refused);
    }

    #[test]
    fn subtrees_are_bounded_and_cover_all_moments() {
        for len in lens([10_000, 38_597_376, 1 << 28]) {
            let subtrees = moment_subtrees(len);
            assert!(subtrees.iter().all(|subtree| subtree.end - subtree.start <= SUBTREE_BYTES));
            let mut at = weights_end(len);
            assert!(at >= (HEADER_LEN + 4 * len.weights) as u64);
            for subtree in subtrees {
                assert_eq!(subtree.start, at);
                at = subtree.end;
            }
            assert_eq!(at, image_bytes(len));
        }
    }
}
