//! A digest of the training state that does not depend on who holds what.
//!
//! Each tensor's weights and moments are hashed where they are; the state's digest is the hash of
//! the tensors' digests in canonical order and of the number of updates. Equal digests mean equal
//! bits everywhere.

use std::fmt;

use zbelastic_kernels::{Backend, View};
use zbelastic_types::{Digest, TensorIndex};

use crate::elastic::LayerImage;
use crate::model::LayerState;

/// The digest of one tensor's `w`, `m` and `v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TensorDigest {
    /// The tensor.
    pub tensor: TensorIndex,
    /// BLAKE3 of its floats in little-endian order: weights, first moments, second moments.
    pub bytes: [u8; 32],
}

/// The digest of the whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateDigest(pub [u8; 32]);

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The digests of a layer's tensors.
pub fn layer_digests<B: Backend>(backend: &B, layer: &LayerState<B>) -> Vec<TensorDigest> {
    let mut digests = Vec::new();
    for tensor in &layer.spec.tensors {
        let mut floats = vec![0.0; tensor.range.len()];
        let mut hasher = blake3::Hasher::new();
        for buffer in [&layer.w, &layer.m, &layer.v] {
            backend.download(View::new(buffer, tensor.range.clone()), &mut floats);
            hash_floats(&mut hasher, &floats);
        }
        let bytes = *hasher.finalize().as_bytes();
        digests.push(TensorDigest { tensor: tensor.index, bytes });
    }
    digests
}

/// The digest of a layer as it travels: its id, its version, then weights and moments.
pub(crate) fn image_digest(image: &LayerImage) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&image.layer.0.to_le_bytes());
    hasher.update(&image.version.0.to_le_bytes());
    for part in [&image.w, &image.m, &image.v] {
        hash_floats(&mut hasher, part);
    }
    Digest(*hasher.finalize().as_bytes())
}

/// Feeds floats to a hash in pieces of a few kilobytes.
fn hash_floats(hasher: &mut blake3::Hasher, floats: &[f32]) {
    const PIECE: usize = 1024;
    let mut bytes = [0u8; 4 * PIECE];
    for piece in floats.chunks(PIECE) {
        for (to, x) in bytes.chunks_exact_mut(4).zip(piece) {
            to.copy_from_slice(&x.to_le_bytes());
        }
        hasher.update(&bytes[..4 * piece.len()]);
    }
}

/// The state's digest from the digests of all its tensors, in whatever order they came.
///
/// # Panics
/// If a tensor is missing or there twice.
#[must_use]
pub fn state_digest(mut tensors: Vec<TensorDigest>, updates: u64) -> StateDigest {
    tensors.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for (index, tensor) in tensors.iter().enumerate() {
        assert_eq!(tensor.tensor.index(), index, "every tensor is there once");
        hasher.update(&tensor.bytes);
    }
    hasher.update(&updates.to_le_bytes());
    StateDigest(*hasher.finalize().as_bytes())
}
