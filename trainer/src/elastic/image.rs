//! A layer as it travels and as it lies in a checkpoint.

use zbelastic_kernels::reference::state_sums;
use zbelastic_kernels::{DeviceFault, HostFloats, PendingFloats};
use zbelastic_types::{Digest, Fingerprint, LayerId, Step};

use super::assembler::LayerAssembler;

/// The version of the form.
const FORMAT_VERSION: u8 = 1;
/// Version, layer, step and the length of one of three parts.
pub(super) const HEADER_LEN: usize = 1 + 4 + 8 + 8;
/// Floats in one part at most: 16 GiB each of weights and moments. No larger layer is trained.
pub const FLOATS_MAX: u64 = 1 << 32;

/// Bytes of a layer of so many floats.
#[must_use]
pub const fn image_bytes(float_count: usize) -> u64 {
    HEADER_LEN as u64 + 12 * float_count as u64
}

/// A layer's sealed state.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerImage {
    /// Id of the layer in model order.
    pub layer: LayerId,
    /// Steps sealed before it.
    pub version: Step,
    /// Weights in the order in which the layer's tensors lie.
    pub w: HostFloats,
    /// First moments, in the order of the weights.
    pub m: HostFloats,
    /// Second moments, in the order of the weights.
    pub v: HostFloats,
}

/// A layer's sealed state that may still be on its way from a device.
#[derive(Clone, Debug)]
pub struct PendingImage {
    layer: LayerId,
    version: Step,
    /// Weights, first and second moments.
    parts: [PendingFloats; 3],
}

impl PendingImage {
    /// The state of a layer at a version: weights, first and second moments.
    #[must_use]
    pub const fn new(layer: LayerId, version: Step, parts: [PendingFloats; 3]) -> Self {
        Self { layer, version, parts }
    }

    /// Id of the layer in model order.
    #[must_use]
    pub const fn layer(&self) -> LayerId {
        self.layer
    }

    /// Steps sealed before it.
    #[must_use]
    pub const fn version(&self) -> Step {
        self.version
    }

    /// Floats of weights and moments together, without a wait.
    #[must_use]
    pub fn float_count(&self) -> usize {
        self.parts.iter().map(PendingFloats::len).sum()
    }

    /// Whether a device still copies it, so that the reader may wait.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        self.parts.iter().any(PendingFloats::is_on_device)
    }

    /// The state. One that a device copies is waited for.
    ///
    /// # Errors
    /// If the device failed before it was read.
    pub fn wait(&self) -> Result<LayerImage, DeviceFault> {
        let Self { layer, version, parts: [w, m, v] } = self;
        let [w, m, v] = [w.wait()?, m.wait()?, v.wait()?];
        Ok(LayerImage { layer: *layer, version: *version, w, m, v })
    }
}

impl From<LayerImage> for PendingImage {
    fn from(image: LayerImage) -> Self {
        let LayerImage { layer, version, w, m, v } = image;
        Self { layer, version, parts: [w, m, v].map(PendingFloats::from) }
    }
}

/// Why bytes are no layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// They end too soon, or go on too long.
    #[error("{found} bytes of a layer, expected {expected}")]
    Length {
        /// Bytes that the header announces.
        expected: u64,
        /// Number of bytes that were given.
        found: u64,
    },
    /// Chaining values of the moments are missing, or too many.
    #[error("{found} chaining values of a layer's moments, expected {expected}")]
    Values {
        /// Subtrees behind the weights.
        expected: usize,
        /// Number of chaining values that were given.
        found: usize,
    },
    /// Another version of the program wrote them.
    #[error("layer format {found}, this program reads {FORMAT_VERSION}")]
    Version {
        /// Format version of the bytes.
        found: u8,
    },
    /// There is no memory for as many.
    #[error("no memory for the {expected} bytes of a layer")]
    Memory {
        /// Bytes that the header announces.
        expected: u64,
    },
    /// More floats than a layer can have.
    #[error("{found} floats, at most {FLOATS_MAX}")]
    Size {
        /// Floats that the header announces.
        found: u64,
    },
}

impl LayerImage {
    /// Its bytes: the header, then weights and moments, little-endian.
    ///
    /// # Panics
    /// If weights and moments differ in length.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { w, m, v, .. } = self;
        assert!(w.len() == m.len() && w.len() == v.len(), "moments are as long as weights");
        let mut bytes = Vec::with_capacity(HEADER_LEN + 12 * w.len());
        bytes.extend(self.header());
        for part in [w, m, v] {
            extend_with_floats(&mut bytes, part);
        }
        bytes
    }

    /// What stands before its weights.
    #[must_use]
    pub fn header(&self) -> [u8; HEADER_LEN] {
        let Self { layer, version, ref w, .. } = *self;
        LayerHeader { layer, version, len: w.len() as u64 }.encode()
    }

    /// The layer in `bytes`.
    ///
    /// # Errors
    /// If they are none, to the last byte.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        let found = bytes.len() as u64;
        let expected = HEADER_LEN as u64;
        let header = bytes.first_chunk::<HEADER_LEN>();
        let header = LayerHeader::decode(header.ok_or(ImageError::Length { expected, found })?)?;
        let expected = header.image_bytes();
        if found != expected {
            return Err(ImageError::Length { expected, found });
        }
        let mut layer = LayerAssembler::new(found);
        layer.push(bytes)?;
        layer.finish().map(|(image, _)| image)
    }
}

/// What stands before a layer's weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerHeader {
    pub(super) layer: LayerId,
    pub(super) version: Step,
    /// Floats in each of its parts.
    pub(super) len: u64,
}

impl LayerHeader {
    fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [FORMAT_VERSION; HEADER_LEN];
        bytes[1..5].copy_from_slice(&self.layer.0.to_le_bytes());
        bytes[5..13].copy_from_slice(&self.version.0.to_le_bytes());
        bytes[13..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub(super) fn decode(header: &[u8; HEADER_LEN]) -> Result<Self, ImageError> {
        if header[0] != FORMAT_VERSION {
            return Err(ImageError::Version { found: header[0] });
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let layer = LayerId(u32::from_le_bytes(std::array::from_fn(|i| header[1 + i])));
        let version = Step(word(5));
        let len = word(13);
        if len > FLOATS_MAX {
            return Err(ImageError::Size { found: len });
        }
        Ok(Self { layer, version, len })
    }

    /// Bytes of the layer, this header included.
    pub(super) const fn image_bytes(self) -> u64 {
        image_bytes(self.len as usize)
    }
}

/// Appends floats, least significant byte first: as they lie, where that is how they lie.
fn extend_with_floats(bytes: &mut Vec<u8>, floats: &[f32]) {
    if cfg!(target_endian = "little") {
        bytes.extend_from_slice(bytemuck::cast_slice(floats));
    } else {
        bytes.extend(floats.iter().flat_map(|x| x.to_le_bytes()));
    }
}

/// The digest of a layer at a version: equal digests mean equal bits.
#[must_use]
pub fn layer_digest(image: &LayerImage) -> Digest {
    crate::digest::image_digest(image)
}

/// The fingerprint of a layer at a version: what its holders compare. Slow: a device adds it up
/// where the layer lies.
#[must_use]
pub fn layer_fingerprint(image: &LayerImage) -> Fingerprint {
    let LayerImage { layer, version, w, m, v } = image;
    crate::digest::fingerprint(*layer, *version, w.len(), state_sums([w, m, v]))
}
