//! A layer as it travels and as it lies in a checkpoint.
//!
//! A layer is named by its id and its version, the number of steps sealed before it. The state that
//! travels is always sealed state: weights and both moments.

mod assembler;
mod digester;
mod identity;
mod scattered;
mod weights;

pub use assembler::{LayerAssembler, LoadedLayer, LoadedWeights};
pub use digester::ImageDigester;
pub(crate) use identity::{fingerprint, layer_digest_on};
pub use identity::{layer_digest, layer_fingerprint};
pub use scattered::ScatteredLayer;
pub use weights::{ChainingValue, moment_subtrees, moment_value, nth_moment_value, weights_end};

use zbelastic_kernels::{DeviceFault, HostFloats, PendingFloats};
use zbelastic_types::{LayerId, Step};

/// The version of the form in which moments are as long as weights.
const FORMAT_VERSION: u8 = 1;
/// The version of the form in which they are shorter: frozen tensors have none.
const SHORT_FORMAT_VERSION: u8 = 2;
/// Version, layer, step and the lengths of the parts: one in 8 bytes, where they are equal; or that of
/// weights, less one, and that of each of the moments in 4 bytes.
const HEADER_LEN: usize = 1 + 4 + 8 + 8;
/// Bytes of an encoded layer from which [`StateLen::of_header`] reads its lengths.
pub const IMAGE_HEADER_LEN: usize = HEADER_LEN;
/// Floats in one part at most: 16 GiB each of weights and moments. No larger layer is trained.
pub const FLOATS_MAX: u64 = 1 << 32;

/// Floats of a layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLen {
    /// Floats of its weights.
    pub weights: usize,
    /// Floats of each of its moments: no more than weights.
    pub moments: usize,
}

impl StateLen {
    /// Where all weights have moments.
    #[must_use]
    pub const fn full(weights: usize) -> Self {
        Self { weights, moments: weights }
    }

    /// Of a layer of so many weights that has so many bytes as it travels.
    #[must_use]
    pub fn of_image(weights: usize, image_bytes: u64) -> Option<Self> {
        let of_moments = image_bytes.checked_sub(HEADER_LEN as u64 + 4 * weights as u64)?;
        let moments = usize::try_from(of_moments / 8).ok()?;
        (of_moments % 8 == 0 && moments <= weights).then_some(Self { weights, moments })
    }

    /// Of the encoded layer that begins with `header`.
    ///
    /// # Errors
    /// If no layer begins so.
    pub fn of_header(header: &[u8; IMAGE_HEADER_LEN]) -> Result<Self, ImageError> {
        LayerHeader::decode(header).map(|header| header.len)
    }

    /// Floats of weights and both moments.
    pub(crate) const fn floats(self) -> u64 {
        self.weights as u64 + 2 * self.moments as u64
    }
}

/// Bytes of a layer of so many floats as it travels.
#[must_use]
pub const fn image_bytes(len: StateLen) -> u64 {
    HEADER_LEN as u64 + 4 * len.floats()
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
    /// First moments of the weights that have some, in their order.
    pub m: HostFloats,
    /// Second moments of the same.
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
    #[error("layer format {found}, this program reads {FORMAT_VERSION} and {SHORT_FORMAT_VERSION}")]
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
    /// As many moments as weights in the form for fewer, or more.
    #[error("{found} moments of {weights} weights in the form for fewer")]
    Moments {
        /// Weights that the header announces.
        weights: u64,
        /// Moments that it announces.
        found: u64,
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
    /// If the moments differ in length, or are longer than the weights.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { w, m, v, .. } = self;
        let mut bytes = Vec::with_capacity(image_bytes(self.state_len()) as usize);
        bytes.extend(self.header());
        for part in [w, m, v] {
            extend_with_floats(&mut bytes, part);
        }
        bytes
    }

    /// Copies its encoded bytes from `offset` on, as many as `into` has.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn read_encoded(&self, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        let expected = image_bytes(self.state_len());
        let found = offset.saturating_add(into.len() as u64);
        if found > expected {
            return Err(ImageError::Length { expected, found });
        }
        let Self { w, m, v, .. } = self;
        let floats = [w, m, v].map(|part| bytemuck::cast_slice(part));
        let mut at = offset as usize;
        let mut left = into;
        for part in [self.header().as_slice(), floats[0], floats[1], floats[2]] {
            let start = at.min(part.len());
            let count = left.len().min(part.len() - start);
            let (now, later) = left.split_at_mut(count);
            now.copy_from_slice(&part[start..start + count]);
            (left, at) = (later, at - start);
        }
        Ok(())
    }

    /// Floats of its parts.
    ///
    /// # Panics
    /// If the moments differ in length, or are longer than the weights.
    #[must_use]
    pub fn state_len(&self) -> StateLen {
        let Self { w, m, v, .. } = self;
        assert!(m.len() == v.len() && m.len() <= w.len(), "both moments, of weights");
        StateLen { weights: w.len(), moments: m.len() }
    }

    /// What stands before its weights.
    #[must_use]
    pub fn header(&self) -> [u8; HEADER_LEN] {
        LayerHeader { layer: self.layer, version: self.version, len: self.state_len() }.encode()
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
struct LayerHeader {
    layer: LayerId,
    version: Step,
    /// Floats of its parts.
    len: StateLen,
}

impl LayerHeader {
    fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [FORMAT_VERSION; HEADER_LEN];
        bytes[1..5].copy_from_slice(&self.layer.0.to_le_bytes());
        bytes[5..13].copy_from_slice(&self.version.0.to_le_bytes());
        let StateLen { weights, moments } = self.len;
        if weights == moments {
            bytes[13..].copy_from_slice(&(weights as u64).to_le_bytes());
        } else {
            bytes[0] = SHORT_FORMAT_VERSION;
            // At most 2^32, and fewer moments.
            bytes[13..17].copy_from_slice(&((weights - 1) as u32).to_le_bytes());
            bytes[17..].copy_from_slice(&(moments as u32).to_le_bytes());
        }
        bytes
    }

    fn decode(header: &[u8; HEADER_LEN]) -> Result<Self, ImageError> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let (weights, moments) = match header[0] {
            FORMAT_VERSION => (word(13), word(13)),
            SHORT_FORMAT_VERSION => {
                let (weights, found) = (u64::from(half(13)) + 1, u64::from(half(17)));
                if found >= weights {
                    return Err(ImageError::Moments { weights, found });
                }
                (weights, found)
            }
            found => return Err(ImageError::Version { found }),
        };
        if weights > FLOATS_MAX {
            return Err(ImageError::Size { found: weights });
        }
        let len = StateLen { weights: weights as usize, moments: moments as usize };
        Ok(Self { layer: LayerId(half(1)), version: Step(word(5)), len })
    }

    /// Bytes of the layer, this header included.
    const fn image_bytes(self) -> u64 {
        image_bytes(self.len)
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
