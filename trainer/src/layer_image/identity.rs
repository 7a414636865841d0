//! The digest and the fingerprint of a layer at a version.

use zbelastic_kernels::HostThreads;
use zbelastic_kernels::fingerprint::mix;
use zbelastic_kernels::reference::state_sums;
use zbelastic_types::{Digest, Fingerprint, LayerId, Step};

use super::{LayerImage, StateLen};
use crate::digest::{LEAF_BYTES, LayerHasher, hash_parts, hashed_bytes, hashed_head};

/// The digest of a layer at a version: equal digests mean equal bits.
#[must_use]
pub fn layer_digest(image: &LayerImage) -> Digest {
    let mut hasher = LayerHasher::new(image.layer, image.version);
    for part in [&image.w, &image.m, &image.v] {
        hasher.update_floats(part);
    }
    hasher.finish()
}

/// The same on all threads of the host.
pub(crate) fn layer_digest_on(host: &HostThreads, image: &LayerImage) -> Digest {
    let LayerImage { layer, version, w, m, v } = image;
    let len = hashed_bytes(image.state_len().floats());
    if host.count() == 1 || len <= LEAF_BYTES || cfg!(target_endian = "big") {
        return layer_digest(image);
    }
    let head = hashed_head(*layer, *version);
    let floats = [w, m, v].map(|part| bytemuck::cast_slice(part));
    hash_parts(host, &[&head[..], floats[0], floats[1], floats[2]])
}

/// The fingerprint of a layer at a version: what its holders compare. Slow: a device adds it up
/// where the layer lies.
#[must_use]
pub fn layer_fingerprint(image: &LayerImage) -> Fingerprint {
    let LayerImage { layer, version, w, m, v } = image;
    fingerprint(*layer, *version, image.state_len(), state_sums([w, m, v]))
}

/// The fingerprint of a layer's state, from the sums over its weights and moments, wherever those were
/// added up.
///
/// Layer, version and length give a number, and each sum is mixed with it; so is the length of moments
/// that are fewer than weights. So of one layer at one version equal fingerprints mean equal sums.
pub(crate) fn fingerprint(
    layer: LayerId,
    version: Step,
    len: StateLen,
    sums: [u64; 2],
) -> Fingerprint {
    let StateLen { weights, moments } = len;
    let fewer = (moments < weights).then_some(moments as u64);
    let name = [u64::from(layer.0), version.0, weights as u64];
    let name =
        name.into_iter().chain(fewer).fold(0, |name, word| mix(name ^ mix(word.wrapping_add(1))));
    let [first, second] = sums;
    Fingerprint([mix(first ^ name), mix(second ^ mix(name ^ 1))])
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::HostThreads;
    use zbelastic_types::{LayerId, Step};

    use super::{LEAF_BYTES, layer_digest, layer_digest_on};
    use crate::layer_image::LayerImage;

    #[test]
    fn threads_that_hash_a_layer_together_find_its_digest() {
        let leaf = LEAF_BYTES as usize / 12;
        let hosts = [1, 2, 3].map(|count| HostThreads::new(count).expect("threads"));
        let lens = [0, 1, leaf - 1, leaf, leaf + 1, 3 * leaf + 7, 8 * leaf + 2];
        for (len, held) in lens.into_iter().flat_map(|len| [len, len / 3, 0].map(|it| (len, it))) {
            let part = |scale: f32, len| (0..len).map(|i| scale * i as f32).collect();
            let w = part(1.0, len);
            let m = part(-0.5, held);
            let v = part(0.25, held);
            let image = LayerImage { layer: LayerId(5), version: Step(1 << 40), w, m, v };
            for host in &hosts {
                assert_eq!(layer_digest_on(host, &image), layer_digest(&image), "{len} floats");
            }
        }
    }
}
