//! A layer put together from chunks that arrive in any order, as several holders send them at once.

use std::ops::Range;

use zbelastic_kernels::HostFloats;

use super::{HEADER_LEN, ImageError, LayerHeader, LayerImage, StateLen, image_bytes};

/// Bytes of a float.
const FLOAT_LEN: usize = 4;

/// Puts a layer together from its encoded bytes, each of which is written once, in any order.
///
/// Weights and moments are allocated once, at their final length, and their memory is taken page by
/// page as it is written. Nothing is hashed: the receiver has verified the chunks.
#[derive(Debug)]
pub struct ScatteredLayer {
    header: [u8; HEADER_LEN],
    /// w, m, v, as encoded.
    parts: [HostFloats; 3],
    /// Bytes that were written so far.
    found: u64,
}

impl ScatteredLayer {
    /// Of a layer of so many floats.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(len: StateLen) -> Result<Self, ImageError> {
        let refusal = |_| ImageError::Memory { expected: image_bytes(len) };
        let part = |len| HostFloats::zeroed(len).map_err(refusal);
        let StateLen { weights, moments } = len;
        let parts = [part(weights)?, part(moments)?, part(moments)?];
        Ok(Self { header: [0; HEADER_LEN], parts, found: 0 })
    }

    /// Writes bytes to where they belong.
    ///
    /// # Errors
    /// If they lie beyond the end of the layer.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        let expected = self.expected();
        let end = offset.saturating_add(bytes.len() as u64);
        if end > expected {
            return Err(ImageError::Length { expected, found: end });
        }
        let written = offset as usize..end as usize;
        let mut begin = 0;
        let [w, m, v] = &mut self.parts;
        let floats = [w, m, v].map(|part| bytemuck::cast_slice_mut(part.as_mut_slice()));
        for to in std::iter::once(self.header.as_mut_slice()).chain(floats) {
            copy_common(to, begin, bytes, written.clone());
            begin += to.len();
        }
        self.found += bytes.len() as u64;
        Ok(())
    }

    /// The layer, once all bytes are there.
    ///
    /// # Errors
    /// If some are missing, or its header announces another layer.
    pub fn finish(self) -> Result<LayerImage, ImageError> {
        let expected = self.expected();
        let found = self.found;
        if expected != found {
            return Err(ImageError::Length { expected, found });
        }
        let header = LayerHeader::decode(&self.header)?;
        let found = header.image_bytes();
        if header.len != self.len() {
            return Err(ImageError::Length { expected, found });
        }
        let LayerHeader { layer, version, .. } = header;
        let [w, m, v] = self.parts.map(of_little_endian);
        Ok(LayerImage { layer, version, w, m, v })
    }

    fn expected(&self) -> u64 {
        image_bytes(self.len())
    }

    fn len(&self) -> StateLen {
        StateLen { weights: self.parts[0].len(), moments: self.parts[1].len() }
    }
}

/// Copies what `bytes`, which lie at `written`, have in common with a part that lies at `begin`.
fn copy_common(part: &mut [u8], begin: usize, bytes: &[u8], written: Range<usize>) {
    let start = written.start.max(begin);
    let end = written.end.min(begin + part.len());
    if start < end {
        let from = start - written.start..end - written.start;
        part[start - begin..end - begin].copy_from_slice(&bytes[from]);
    }
}

/// Floats whose bytes lie least significant first.
fn of_little_endian(mut floats: HostFloats) -> HostFloats {
    if cfg!(target_endian = "big") {
        for x in floats.as_mut_slice() {
            *x = f32::from_bits(x.to_bits().swap_bytes());
        }
    }
    floats
}

const _: () = assert!(size_of::<f32>() == FLOAT_LEN);

#[cfg(test)]
mod tests {
    use zbelastic_types::{LayerId, Step};

    use super::*;

    fn image(StateLen { weights, moments }: StateLen) -> LayerImage {
        let part = |start: usize, len| (start..start + len).map(|i| i as f32 * 0.5).collect();
        let w = part(1, weights);
        let m = part(100, moments);
        let v = part(1000, moments);
        LayerImage { layer: LayerId(3), version: Step(9), w, m, v }
    }

    #[test]
    fn chunks_of_any_size_in_any_order_make_the_layer() {
        let sizes = |len| (1..=image_bytes(len) as usize).map(move |size| (len, size));
        let short = StateLen { weights: 7, moments: 2 };
        for (len, size) in sizes(StateLen::full(7)).chain(sizes(short)) {
            let image = image(len);
            let bytes = image.encode();
            let mut layer = ScatteredLayer::new(len).expect("memory");
            let chunks: Vec<_> = (0..).step_by(size).zip(bytes.chunks(size)).collect();
            // Every other one first, the rest backwards.
            let (first, rest): (Vec<_>, Vec<_>) =
                chunks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
            for (_, (offset, chunk)) in first.into_iter().chain(rest.into_iter().rev()) {
                layer.write(offset, chunk).expect("within the layer");
            }
            assert_eq!(layer.finish().expect("whole"), image, "chunks of {size}");
        }
    }

    #[test]
    fn what_is_missing_too_long_or_of_another_size_is_refused() {
        let len = StateLen::full(7);
        let bytes = image(len).encode();
        let mut layer = ScatteredLayer::new(len).expect("memory");
        let expected = bytes.len() as u64;
        layer.write(0, &bytes[..bytes.len() - 1]).expect("within the layer");
        let found = expected + 1;
        let beyond = layer.write(expected - 1, &[1, 2]);
        assert_eq!(beyond, Err(ImageError::Length { expected, found }));
        assert!(layer.write(u64::MAX, &[1]).is_err());
        let found = expected - 1;
        assert_eq!(layer.finish(), Err(ImageError::Length { expected, found }));
        // The header announces another length.
        let mut other = ScatteredLayer::new(len).expect("memory");
        let mut wrong = bytes.clone();
        wrong[..HEADER_LEN].copy_from_slice(&image(StateLen::full(8)).header());
        other.write(0, &wrong).expect("within the layer");
        let found = image_bytes(StateLen::full(8));
        assert_eq!(other.finish(), Err(ImageError::Length { expected, found }));
    }
}
