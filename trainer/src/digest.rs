//! A digest of the training state that does not depend on who holds what.
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
use zbelastic_kernels::fingerprint::mix;
use zbelastic_types::{Digest, Fingerprint, LayerId, Step};

use crate::elastic::LayerImage;

/// Bytes that a thread hashes at once, where several hash one layer.
const LEAF_BYTES: u64 = 1 << 20;

/// The digest of the whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateDigest(pub [u8; 32]);

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Makes the digest of a layer as it travels: of its id, its version, then weights and moments.
#[derive(Debug)]
pub(crate) struct LayerHasher(blake3::Hasher);

impl LayerHasher {
    pub(crate) fn new(layer: LayerId, version: Step) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&layer.0.to_le_bytes());
        hasher.update(&version.0.to_le_bytes());
        Self(hasher)
    }

    /// Takes the bytes of floats that follow, as they travel.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

/// The digest of a layer as it travels.
pub(crate) fn image_digest(image: &LayerImage) -> Digest {
    let mut hasher = LayerHasher::new(image.layer, image.version);
    for part in [&image.w, &image.m, &image.v] {
        hash_floats(&mut hasher.0, part);
    }
    hasher.finish()
}

/// The same on all threads of the host.
pub(crate) fn image_digest_on(host: &HostThreads, image: &LayerImage) -> Digest {
    let LayerImage { layer, version, w, m, v } = image;
    let mut head = [0; 12];
    head[..4].copy_from_slice(&layer.0.to_le_bytes());
    head[4..].copy_from_slice(&version.0.to_le_bytes());
    let len = (head.len() + 12 * w.len()) as u64;
    if host.count() == 1 || len <= LEAF_BYTES || cfg!(target_endian = "big") {
        return image_digest(image);
    }
    let floats = [w, m, v].map(|part| bytemuck::cast_slice(part));
    let parts = [&head[..], floats[0], floats[1], floats[2]];
    let mut leaves = Vec::new();
    split(0..len, &mut leaves);
    let mut values = vec![[0; 32]; leaves.len()];
    let tasks = leaves.into_iter().zip(&mut values).collect();
    host.for_each(tasks, |(leaf, value): (Range<u64>, &mut ChainingValue)| {
        *value = leaf_value(&parts, leaf);
    });
    let mut values = values.into_iter();
    let left_len = left_subtree_len(len);
    let (left, right) = (merged(left_len, &mut values), merged(len - left_len, &mut values));
    Digest(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
}

/// Cuts a subtree of BLAKE3 into those that are hashed as a whole, in order.
fn split(Range { start, end }: Range<u64>, leaves: &mut Vec<Range<u64>>) {
    if end - start <= LEAF_BYTES {
        return leaves.push(start..end);
    }
    let middle = start + left_subtree_len(end - start);
    split(start..middle, leaves);
    split(middle..end, leaves);
}

/// The value of a subtree over what lies in `leaf`, if `parts` lie one behind the other.
fn leaf_value(parts: &[&[u8]], leaf: Range<u64>) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(leaf.start);
    let mut start = 0;
    for part in parts {
        let end = start + part.len() as u64;
        let (from, to) = (leaf.start.clamp(start, end), leaf.end.clamp(start, end));
        hasher.update(&part[(from - start) as usize..(to - start) as usize]);
        start = end;
    }
    hasher.finalize_non_root()
}

/// The value of a subtree of so many bytes, from those that [`split`] cut it into.
fn merged(len: u64, values: &mut impl Iterator<Item = ChainingValue>) -> ChainingValue {
    if len <= LEAF_BYTES {
        return values.next().expect("a value for each leaf");
    }
    let left_len = left_subtree_len(len);
    let (left, right) = (merged(left_len, values), merged(len - left_len, values));
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

/// The fingerprint of a layer's state, from the sums over its weights and moments, `len` floats each:
/// wherever those were added up.
///
/// Layer, version and length give a number, and each sum is mixed with it. So of one layer at one version
/// equal fingerprints mean equal sums.
pub(crate) fn fingerprint(
    layer: LayerId,
    version: Step,
    len: usize,
    sums: [u64; 2],
) -> Fingerprint {
    let name = [u64::from(layer.0), version.0, len as u64];
    let name = name.into_iter().fold(0, |name, word| mix(name ^ mix(word.wrapping_add(1))));
    let [first, second] = sums;
    Fingerprint([mix(first ^ name), mix(second ^ mix(name ^ 1))])
}

/// Feeds floats to a hash, least significant byte first. Whole slices where that is how they lie:
/// the hash works on many pieces of one slice at once.
fn hash_floats(hasher: &mut blake3::Hasher, floats: &[f32]) {
    if cfg!(target_endian = "little") {
        hasher.update(bytemuck::cast_slice(floats));
    } else {
        for x in floats {
            hasher.update(&x.to_le_bytes());
        }
    }
}

/// The state's digest from the digests of all its layers, in model order, each as it travels.
///
/// So whoever knows a checkpoint's layers knows the state's digest, without reading a float.
#[must_use]
pub fn state_digest(layers: impl IntoIterator<Item = Digest>, updates: u64) -> StateDigest {
    let mut hasher = blake3::Hasher::new();
    for layer in layers {
        hasher.update(&layer.0);
    }
    hasher.update(&updates.to_le_bytes());
    StateDigest(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::HostThreads;
    use zbelastic_types::{LayerId, Step};

    use super::{LEAF_BYTES, image_digest, image_digest_on};
    use crate::elastic::LayerImage;

    #[test]
    fn threads_that_hash_a_layer_together_find_its_digest() {
        let leaf = LEAF_BYTES as usize / 12;
        let hosts = [1, 2, 3].map(|count| HostThreads::new(count).expect("threads"));
        for len in [0, 1, leaf - 1, leaf, leaf + 1, 3 * leaf + 7, 8 * leaf + 2] {
            let part = |scale: f32| (0..len).map(|i| scale * i as f32).collect();
            let (w, m, v) = (part(1.0), part(-0.5), part(0.25));
            let image = LayerImage { layer: LayerId(5), version: Step(1 << 40), w, m, v };
            for host in &hosts {
                assert_eq!(image_digest_on(host, &image), image_digest(&image), "{len} floats");
            }
        }
    }
}
