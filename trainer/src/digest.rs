//! A digest of the training state that does not depend on who holds what.
//!
//! Each layer's weights and moments are hashed where they are; the state's digest is the hash of
//! the layers' digests in model order and of the number of updates. Equal digests mean equal bits
//! everywhere.

use std::fmt;

use zbelastic_kernels::fingerprint::mix;
use zbelastic_types::{Digest, Fingerprint, LayerId, Step};

use crate::elastic::LayerImage;

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
