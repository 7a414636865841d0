//! A safetensors file that is read piece by piece: its header, and its tensors as floats.

use std::io;
use std::ops::Range;

use safetensors::tensor::{Dtype, Metadata, SafeTensorError};
use zbelastic_kernels::float_of_bf16;

use super::import_error::{HeaderError, ImportError};
use super::weight_type::WeightType;

/// Bytes of a header at most; as the crate has it.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;
/// Elements that are read at once: as many as a core's cache holds, beside the bytes that they come from, until
/// they are in their place.
pub(super) const READ_AT_ONCE: usize = 1 << 15;

/// The bytes of a file, wherever they are. Several threads read them at once.
pub trait WeightBytes: Sync {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads those from `offset` on, as many as `into` holds.
    ///
    /// # Errors
    /// If there are fewer, or they cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

impl WeightBytes for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(offset).ok().and_then(|start| self.get(start..));
        let there = there.and_then(|bytes| bytes.get(..into.len()));
        into.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl WeightBytes for Vec<u8> {
    fn len(&self) -> u64 {
        Self::len(self) as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        WeightBytes::read(&&self[..], offset, into)
    }
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    dtype: Dtype,
    /// Where its elements begin in the file.
    pub(super) start: u64,
}

impl StoredTensor {
    /// The type of its elements, if they are read.
    pub(super) fn element_type(&self) -> Result<WeightType, ImportError> {
        WeightType::of_dtype(self.dtype)
            .ok_or_else(|| ImportError::Type { name: self.name.clone(), found: self.dtype })
    }
}

/// The tensors of a file in the order in which they lie.
pub(super) fn read_header(bytes: &dyn WeightBytes) -> Result<Vec<StoredTensor>, HeaderError> {
    let file = bytes.len();
    let mut length = [0; LENGTH_BYTES as usize];
    bytes.read(0, &mut length)?;
    let header = u64::from_le_bytes(length);
    if header > HEADER_BYTES_MAX.min(file.saturating_sub(LENGTH_BYTES)) {
        return Err(HeaderError::Length { header, file });
    }
    let mut text = vec![0; header as usize];
    bytes.read(LENGTH_BYTES, &mut text)?;
    let text = std::str::from_utf8(&text).map_err(|_| HeaderError::Text)?;
    let metadata: Metadata =
        serde_json::from_str(text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    let data = LENGTH_BYTES + header;
    // Offsets of a file that lies may add up to anything.
    let expected = data.saturating_add(metadata.data_len() as u64);
    if expected != file {
        return Err(HeaderError::Size { expected, found: file });
    }
    let keys = metadata.offset_keys().into_iter();
    let tensors = keys.filter_map(|name| {
        let info = metadata.info(&name)?;
        let start = data + info.data_offsets.0 as u64;
        Some(StoredTensor { name, shape: info.shape.clone(), dtype: info.dtype, start })
    });
    Ok(tensors.collect())
}

/// The elements of one tensor, as floats.
pub(super) struct TensorReader<'a> {
    bytes: &'a dyn WeightBytes,
    file: &'a str,
    tensor: &'a StoredTensor,
    element_type: WeightType,
    halves: Vec<u8>,
}

impl<'a> TensorReader<'a> {
    pub(super) fn new(
        bytes: &'a dyn WeightBytes,
        file: &'a str,
        tensor: &'a StoredTensor,
    ) -> Result<Self, ImportError> {
        let element_type = tensor.element_type()?;
        Ok(Self { bytes, file, tensor, element_type, halves: Vec::new() })
    }

    /// Reads the elements from number `first` on, [`READ_AT_ONCE`] at a time.
    pub(super) fn read(&mut self, first: usize, into: &mut [f32]) -> Result<(), ImportError> {
        for (piece, into) in into.chunks_mut(READ_AT_ONCE).enumerate() {
            let first = first + piece * READ_AT_ONCE;
            self.read_piece(first, into).map_err(|error| {
                let file = self.file.to_owned();
                ImportError::Read { file, error }
            })?;
            if has_nonfinite(into) {
                let at = into.iter().position(|x| !x.is_finite()).expect("one is not finite");
                let name = self.tensor.name.clone();
                return Err(ImportError::NotFinite { name, index: first + at, found: into[at] });
            }
        }
        Ok(())
    }

    fn read_piece(&mut self, first: usize, into: &mut [f32]) -> io::Result<()> {
        let start = self.tensor.start;
        match self.element_type {
            WeightType::F32 => {
                self.bytes.read(start + 4 * first as u64, bytemuck::cast_slice_mut(into))?;
                // The file's order of bytes is this machine's almost everywhere.
                into.iter_mut().for_each(|x| *x = f32::from_bits(u32::from_le(x.to_bits())));
            }
            WeightType::F16 => self.read_halves(first, into, float_of_f16)?,
            WeightType::Bf16 => self.read_halves(first, into, float_of_bf16)?,
        }
        Ok(())
    }

    #[inline]
    fn read_halves(
        &mut self,
        first: usize,
        into: &mut [f32],
        float: impl Fn(u16) -> f32,
    ) -> io::Result<()> {
        self.halves.resize(2 * into.len(), 0);
        self.bytes.read(self.tensor.start + 2 * first as u64, &mut self.halves)?;
        for (to, half) in into.iter_mut().zip(self.halves.as_chunks::<2>().0) {
            *to = float(u16::from_le_bytes(*half));
        }
        Ok(())
    }

    /// Reads rows of the file's tensor, `width` elements each.
    pub(super) fn read_rows(
        &mut self,
        rows: &Range<usize>,
        width: usize,
        into: &mut [f32],
    ) -> Result<(), ImportError> {
        self.read(rows.start * width, &mut into[..rows.len() * width])
    }
}

const EXPONENT: u32 = 0x7f80_0000;

fn has_nonfinite(floats: &[f32]) -> bool {
    // All are looked at, whatever was found, so that several are compared at once.
    floats.iter().fold(false, |any, x| any | (x.to_bits() & EXPONENT == EXPONENT))
}

/// Every half is a float exactly; without a branch, so that several are converted at once.
#[inline]
fn float_of_f16(half: u16) -> f32 {
    // Exponents count from -15 there and from -127 here.
    const SHIFTED: u32 = (127 - 15) << 23;
    const SMALLEST_NORMAL: u32 = 1 << 23;
    const INFINITE: u32 = 31 << 23;
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let normal = magnitude + SHIFTED;
    // One more in the exponent gives the mantissa a leading one, which is subtracted again.
    let implied = f32::from_bits(SHIFTED + SMALLEST_NORMAL);
    let subnormal = (f32::from_bits(normal + SMALLEST_NORMAL) - implied).to_bits();
    let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    let bits = if magnitude >= INFINITE { magnitude | EXPONENT } else { finite };
    f32::from_bits(bits | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As IEEE 754 defines it.
    fn meaning(half: u16) -> f64 {
        let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from(half >> 10 & 31);
        let mantissa = f64::from(half & 0x3ff);
        let magnitude = match exponent {
            0 => mantissa * libm::exp2(-24.0),
            31 if mantissa == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (mantissa + 1024.0) * libm::exp2(f64::from(exponent - 25)),
        };
        sign * magnitude
    }

    #[test]
    fn every_half_is_the_float_of_its_meaning() {
        for half in 0..=u16::MAX {
            let found = f64::from(float_of_f16(half));
            let expected = meaning(half);
            let is_same =
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(is_same, "{half:#x}: {found}, expected {expected}");
            assert_eq!(
                has_nonfinite(&[0.0, float_of_f16(half)]),
                !expected.is_finite(),
                "{half:#x}"
            );
        }
    }
}
