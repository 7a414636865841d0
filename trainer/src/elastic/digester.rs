//! The digest of an encoded layer that is too large to be held whole.

use zbelastic_types::Digest;

use super::image::{HEADER_LEN, Header, ImageError};
use crate::digest::LayerHasher;

/// Computes the digest of a layer from its encoded bytes, pushed in order, in pieces of any size. It
/// holds the header and the state of a hash function, whatever the layer.
#[derive(Debug)]
pub struct ImageDigester {
    /// Bytes expected in all.
    expected: u64,
    /// Bytes pushed.
    found: u64,
    /// The header, until it is whole.
    header: Vec<u8>,
    hasher: Option<LayerHasher>,
}

impl ImageDigester {
    /// Of a layer of `expected` encoded bytes, header included: [`super::image_bytes`].
    #[must_use]
    pub fn new(expected: u64) -> Self {
        Self { expected, found: 0, header: Vec::with_capacity(HEADER_LEN), hasher: None }
    }

    /// Hashes the bytes that follow those pushed before.
    ///
    /// # Errors
    /// If they are not the bytes of a layer of the expected length. Nothing more may be pushed then.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), ImageError> {
        self.found += bytes.len() as u64;
        if self.found > self.expected {
            return Err(ImageError::Length { expected: self.expected, found: self.found });
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
            return Ok(());
        }
        let (now, later) = bytes.split_at(bytes.len().min(HEADER_LEN - self.header.len()));
        self.header.extend_from_slice(now);
        bytes = later;
        let Some(header) = self.header.first_chunk() else { return Ok(()) };
        let header = Header::decode(header)?;
        let (expected, found) = (header.image_bytes(), self.expected);
        if expected != found {
            return Err(ImageError::Length { expected, found });
        }
        let mut hasher = LayerHasher::new(header.layer, header.version);
        hasher.update(bytes);
        self.hasher = Some(hasher);
        Ok(())
    }

    /// The digest, once all bytes were pushed.
    ///
    /// # Errors
    /// If some are missing.
    pub fn finish(self) -> Result<Digest, ImageError> {
        let Self { expected, found, hasher, .. } = self;
        let hasher = hasher.filter(|_| expected == found);
        Ok(hasher.ok_or(ImageError::Length { expected, found })?.finish())
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{LayerId, Step};

    use super::*;
    use crate::elastic::{LayerImage, layer_digest};

    fn digest(bytes: &[u8], piece: usize, expected: u64) -> Result<Digest, ImageError> {
        let mut digester = ImageDigester::new(expected);
        bytes.chunks(piece).try_for_each(|bytes| digester.push(bytes))?;
        digester.finish()
    }

    #[test]
    fn the_digest_is_that_of_the_decoded_layer_whatever_the_pieces() {
        let floats = |start: u32| (start..start + 7).map(|i| i as f32 * 0.25).collect();
        let (w, m, v) = (floats(1), floats(40), floats(900));
        let image = LayerImage { layer: LayerId(3), version: Step(9), w, m, v };
        let (bytes, expected) = (image.encode(), layer_digest(&image));
        let len = bytes.len() as u64;
        for piece in 1..=bytes.len() {
            assert_eq!(digest(&bytes, piece, len), Ok(expected), "pieces of {piece}");
        }
        let mut flipped = bytes.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        assert_ne!(digest(&flipped, 5, len), Ok(expected));
        let (short, long) = (&bytes[..bytes.len() - 1], [bytes.as_slice(), &[0]].concat());
        assert_eq!(
            digest(short, 5, len),
            Err(ImageError::Length { expected: len, found: len - 1 })
        );
        assert_eq!(
            digest(&long, 500, len),
            Err(ImageError::Length { expected: len, found: len + 1 })
        );
        let other = digest(&bytes, 5, len + 12);
        assert_eq!(other, Err(ImageError::Length { expected: len, found: len + 12 }));
    }
}
