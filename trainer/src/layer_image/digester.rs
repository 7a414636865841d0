//! The digest of an encoded layer that is too large to be held whole.

use zbelastic_types::Digest;

use super::weights::{ChainingValue, PrefixHasher, weights_end};
use super::{HEADER_LEN, ImageError, LayerHeader, StateLen, image_bytes};
use crate::digest::LayerHasher;

/// Computes the digest of a layer from its encoded bytes, pushed in order, in pieces of any size.
/// It holds the header and the state of a hash function, whatever the layer.
#[derive(Debug)]
pub struct ImageDigester {
    /// Bytes of the encoded layer.
    image: u64,
    /// Its lengths, where they are known before its header is read.
    len: Option<StateLen>,
    /// Bytes of it that are pushed.
    expected: u64,
    /// Bytes that were pushed so far.
    found: u64,
    /// The header, until it is whole.
    pending: Vec<u8>,
    begun: Option<(LayerHeader, DigestInput)>,
}

/// What the digest is computed from.
#[derive(Debug)]
enum DigestInput {
    /// All bytes of an encoded layer that is not cut: it has no subtree behind its weights.
    Whole(LayerHasher),
    /// Subtrees: all of them, or those of the weights and chaining values of the subtrees behind.
    Subtrees(PrefixHasher),
}

impl ImageDigester {
    /// Of a layer of `expected` encoded bytes, header included: [`super::image_bytes`].
    #[must_use]
    pub fn new(expected: u64) -> Self {
        let pending = Vec::with_capacity(HEADER_LEN);
        Self { image: expected, len: None, expected, found: 0, pending, begun: None }
    }

    /// Of a layer of so many floats, of which only the bytes up to [`weights_end`] are pushed.
    pub(super) fn of_weights(len: StateLen) -> Self {
        Self { len: Some(len), expected: weights_end(len), ..Self::new(image_bytes(len)) }
    }

    /// Bytes that were pushed so far.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.found
    }

    /// Hashes the bytes that follow those pushed before.
    ///
    /// # Errors
    /// If they are not the bytes of a layer of the expected length. Nothing more may be pushed
    /// then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.push_floats(bytes).map(|_| ())
    }

    /// The same. Yields the header once it is whole, and the bytes of floats among those pushed.
    pub(super) fn push_floats<'a>(
        &mut self,
        mut bytes: &'a [u8],
    ) -> Result<Option<(LayerHeader, &'a [u8])>, ImageError> {
        self.found += bytes.len() as u64;
        if self.found > self.expected {
            return Err(ImageError::Length { expected: self.expected, found: self.found });
        }
        if self.begun.is_none() {
            fill(&mut self.pending, &mut bytes, HEADER_LEN);
            let Some(header) = self.pending.first_chunk() else { return Ok(None) };
            let header = LayerHeader::decode(header)?;
            let expected = header.image_bytes();
            let found = self.image;
            let is_other = self.len.is_some_and(|len| len != header.len);
            if expected != found || is_other {
                return Err(ImageError::Length { expected, found });
            }
            let input = if weights_end(header.len) == self.image {
                DigestInput::Whole(LayerHasher::new(header.layer, header.version))
            } else {
                DigestInput::Subtrees(PrefixHasher::new(header, self.expected))
            };
            self.begun = Some((header, input));
        }
        let Some((header, input)) = &mut self.begun else { return Ok(None) };
        match input {
            DigestInput::Whole(hasher) => hasher.update(bytes),
            DigestInput::Subtrees(hasher) => hasher.update(bytes),
        }
        Ok(Some((*header, bytes)))
    }

    /// The digest, once all bytes were pushed.
    ///
    /// # Errors
    /// If some are missing.
    pub fn finish(self) -> Result<Digest, ImageError> {
        self.finish_before(&[])
    }

    /// The digest, once all bytes were pushed, and the chaining values of the layer's
    /// [`super::moment_subtrees`], which were made on the way.
    ///
    /// # Errors
    /// If some are missing.
    pub fn finish_with_moments(self) -> Result<(Digest, Vec<ChainingValue>), ImageError> {
        let values = match &self.begun {
            Some((_, DigestInput::Subtrees(hasher))) => hasher.moment_values(),
            Some((_, DigestInput::Whole(_))) | None => Vec::new(),
        };
        Ok((self.finish()?, values))
    }

    /// The digest, once all bytes were pushed that are: `behind` are the chaining values of the
    /// others.
    pub(super) fn finish_before(self, behind: &[ChainingValue]) -> Result<Digest, ImageError> {
        let Self { expected, found, begun, .. } = self;
        let begun = begun.filter(|_| expected == found);
        match begun.ok_or(ImageError::Length { expected, found })? {
            (_, DigestInput::Whole(hasher)) => match behind {
                [] => Ok(hasher.finish()),
                values => Err(ImageError::Values { expected: 0, found: values.len() }),
            },
            (_, DigestInput::Subtrees(hasher)) => hasher.finish_before(behind),
        }
    }
}

/// Moves bytes until `to` has `len` of them, or none are left.
pub(super) fn fill(to: &mut Vec<u8>, from: &mut &[u8], len: usize) {
    let (now, later) = from.split_at(from.len().min(len - to.len()));
    to.extend_from_slice(now);
    *from = later;
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{LayerId, Step};

    use super::*;
    use crate::layer_image::{LayerImage, layer_digest};

    fn digest(bytes: &[u8], piece: usize, expected: u64) -> Result<Digest, ImageError> {
        let mut digester = ImageDigester::new(expected);
        bytes.chunks(piece).try_for_each(|bytes| digester.push(bytes))?;
        digester.finish()
    }

    #[test]
    fn the_digest_is_that_of_the_decoded_layer_whatever_the_pieces() {
        let floats = |start: u32| (start..start + 7).map(|i| i as f32 * 0.25).collect();
        let w = floats(1);
        let m = floats(40);
        let v = floats(900);
        let image = LayerImage { layer: LayerId(3), version: Step(9), w, m, v };
        let bytes = image.encode();
        let expected = layer_digest(&image);
        let len = bytes.len() as u64;
        for piece in 1..=bytes.len() {
            assert_eq!(digest(&bytes, piece, len), Ok(expected), "pieces of {piece}");
        }
        let mut flipped = bytes.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        assert_ne!(digest(&flipped, 5, len), Ok(expected));
        let short = &bytes[..bytes.len() - 1];
        let long = [bytes.as_slice(), &[0]].concat();
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
