//! A layer put together from its bytes as they arrive, a piece at a time.

use zbelastic_kernels::HostFloats;
use zbelastic_types::{Digest, LayerId, Step};

use super::digester::{ImageDigester, fill};
use super::weights::ChainingValue;
use super::{ImageError, LayerHeader, LayerImage, StateLen};

/// Bytes of a float.
const FLOAT_LEN: usize = 4;

/// Puts a layer together from its encoded bytes, in order, in pieces of any size.
///
/// Weights and moments are allocated once, at their final length, when the header is there and
/// announces as many bytes as are expected; each byte is copied once, to where it belongs, and
/// hashed on its way. So a layer that arrives needs as much memory as in training, and nothing of
/// its length beside.
#[derive(Debug)]
pub struct LayerAssembler {
    digester: ImageDigester,
    /// The bytes of a float that is not whole.
    pending: Vec<u8>,
    /// How many of weights and the two moments are kept.
    kept: usize,
    payload: Option<LayerPayload>,
}

/// The weights of a layer, whose moments were not read.
#[derive(Clone, Debug)]
pub struct LoadedWeights {
    /// Id of the layer in model order.
    pub layer: LayerId,
    /// Steps sealed before it.
    pub version: Step,
    /// Weights in the order in which the layer's tensors lie.
    pub w: HostFloats,
    /// The digest of all of its bytes.
    pub digest: Digest,
}

/// A layer of a checkpoint as it was read: where it was read, its digest was computed as well, so
/// that no device waits for that.
#[derive(Clone, Debug)]
pub struct LoadedLayer {
    /// The layer, with its weights and moments.
    pub image: LayerImage,
    /// The digest of its bytes.
    pub digest: Digest,
}

impl LoadedLayer {
    /// The layer that these bytes are.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        let mut assembler = LayerAssembler::new(bytes.len() as u64);
        assembler.push(bytes)?;
        let (image, digest) = assembler.finish()?;
        Ok(Self { image, digest })
    }
}

/// The payload behind the header.
#[derive(Debug)]
struct LayerPayload {
    header: LayerHeader,
    /// w, m, v, or the first of them.
    parts: Vec<HostFloats>,
    /// Floats of those that are kept that are there.
    filled: usize,
}

impl LayerAssembler {
    /// Of a layer of `expected` encoded bytes, header included: [`super::image_bytes`].
    #[must_use]
    pub fn new(expected: u64) -> Self {
        Self::keeping(3, ImageDigester::new(expected))
    }

    /// Of a layer of so many floats, for a reader that needs no moments: the bytes up to
    /// [`super::weights_end`] are pushed, and chaining values stand for the others.
    #[must_use]
    pub fn of_weights(expected: StateLen) -> Self {
        Self::keeping(1, ImageDigester::of_weights(expected))
    }

    fn keeping(kept: usize, digester: ImageDigester) -> Self {
        Self { digester, pending: Vec::with_capacity(FLOAT_LEN), kept, payload: None }
    }

    /// Bytes that were pushed so far.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.digester.found()
    }

    /// Appends the bytes that follow those pushed before.
    ///
    /// # Errors
    /// If the bytes so far cannot become the layer that is expected. Nothing more may be pushed
    /// then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        let Some((header, floats)) = self.digester.push_floats(bytes)? else { return Ok(()) };
        let payload = match &mut self.payload {
            Some(payload) => payload,
            None => self.payload.insert(LayerPayload::new(header, self.kept)?),
        };
        payload.push(&mut self.pending, floats);
        Ok(())
    }

    /// The layer and its digest, once all bytes are there.
    ///
    /// # Errors
    /// If some are missing.
    ///
    /// # Panics
    /// If it was made for the weights alone.
    pub fn finish(self) -> Result<(LayerImage, Digest), ImageError> {
        let digest = self.digester.finish()?;
        let LayerPayload { header, parts, .. } = self.payload.expect("its header came");
        let LayerHeader { layer, version, .. } = header;
        let [w, m, v] = <[HostFloats; 3]>::try_from(parts).expect("the moments were kept");
        Ok((LayerImage { layer, version, w, m, v }, digest))
    }

    /// The weights, once they are there, and the digest of the layer whose subtrees behind them
    /// ([`super::moment_subtrees`]) have the values `behind`.
    ///
    /// # Errors
    /// If bytes or values are missing.
    ///
    /// # Panics
    /// Never: whose bytes are all there has a header.
    pub fn finish_weights(self, behind: &[ChainingValue]) -> Result<LoadedWeights, ImageError> {
        let digest = self.digester.finish_before(behind)?;
        let LayerPayload { header, mut parts, .. } = self.payload.expect("its header came");
        let LayerHeader { layer, version, .. } = header;
        Ok(LoadedWeights { layer, version, w: parts.swap_remove(0), digest })
    }
}

impl LayerPayload {
    fn new(header: LayerHeader, kept: usize) -> Result<Self, ImageError> {
        let StateLen { weights, moments } = header.len;
        let refusal = |_| ImageError::Memory { expected: header.image_bytes() };
        let lens = [weights, moments, moments].into_iter().take(kept);
        let parts = lens.map(|len| HostFloats::zeroed(len).map_err(refusal));
        let parts = parts.collect::<Result<_, _>>()?;
        Ok(Self { header, parts, filled: 0 })
    }

    /// Appends bytes of floats, of which the first `pending` came before.
    fn push(&mut self, pending: &mut Vec<u8>, mut bytes: &[u8]) {
        if !pending.is_empty() {
            fill(pending, &mut bytes, FLOAT_LEN);
            if pending.len() < FLOAT_LEN {
                return;
            }
            self.extend(pending);
            pending.clear();
        }
        let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % FLOAT_LEN);
        self.extend(whole);
        pending.extend_from_slice(rest);
    }

    /// Puts whole floats where they belong.
    fn extend(&mut self, bytes: &[u8]) {
        let (mut floats, _) = bytes.as_chunks::<FLOAT_LEN>();
        let mut begin = 0;
        // What is beyond the parts that are kept is not read.
        for part in &mut self.parts {
            let start = self.filled.saturating_sub(begin).min(part.len());
            let (now, later) = floats.split_at(floats.len().min(part.len() - start));
            let to = &mut part.as_mut_slice()[start..start + now.len()];
            for (to, bytes) in to.iter_mut().zip(now) {
                *to = f32::from_le_bytes(*bytes);
            }
            self.filled += now.len();
            (begin, floats) = (begin + part.len(), later);
        }
    }
}
