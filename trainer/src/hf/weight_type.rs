//! The types in which weights are stored, and how floats are rounded to them.

use safetensors::tensor::Dtype;
use zbelastic_kernels::bf16_bits;

/// The type of a file's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32 bits, as training has them.
    F32,
    /// bfloat16: the upper half of an `F32`.
    Bf16,
    /// IEEE 754's binary16: more digits than bfloat16, and nothing beyond 65,504.
    F16,
}

impl WeightType {
    /// The three types, each of whose weights is a float exactly.
    const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// Its name in a file's header.
    pub(super) const fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
        }
    }

    /// The type of that name, of which the crate has more.
    pub(super) fn of_dtype(dtype: Dtype) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.dtype() == dtype)
    }

    /// Bytes of a weight.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Its name in `config.json`, which is PyTorch's.
    #[must_use]
    pub const fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// Appends `floats` in this type, little endian, rounded to the nearest and to even.
    ///
    /// # Errors
    /// With the first finite float that is too large for the type.
    pub(super) fn encode(self, floats: &[f32], to: &mut Vec<u8>) -> Result<(), f32> {
        let half: fn(f32) -> (u16, u16) = match self {
            Self::F32 => {
                to.extend(floats.iter().flat_map(|x| x.to_le_bytes()));
                return Ok(());
            }
            Self::Bf16 => |x| (bf16_bits(x), 0x7f80),
            Self::F16 => |x| (f16_bits(x), 0x7c00),
        };
        for x in floats {
            let (bits, infinity) = half(*x);
            if bits & 0x7fff == infinity && x.is_finite() {
                return Err(*x);
            }
            to.extend(bits.to_le_bytes());
        }
        Ok(())
    }
}

/// 2^24, by which the smallest subnormal binary16 is 1.
const SUBNORMALS: f32 = 16_777_216.0;
/// Bits of 2^-14, the smallest normal binary16, as an f32.
const NORMAL_MIN: u32 = 0x3880_0000;
/// Bits of 2^16, which rounds to infinity, as an f32.
const BEYOND: u32 = 0x4780_0000;

/// The nearest binary16; a NaN stays one.
fn f16_bits(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let size = x.to_bits() & 0x7fff_ffff;
    let rounded = if x.is_nan() {
        0x7e00
    } else if size >= BEYOND {
        0x7c00
    } else if size < NORMAL_MIN {
        // The product is exact, and below 1,024.
        (f32::from_bits(size) * SUBNORMALS).round_ties_even() as u16
    } else {
        let biased = size - (112 << 23);
        ((biased + 0xfff + (biased >> 13 & 1)) >> 13) as u16
    };
    sign | rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a finite number with so many bits of mantissa, by the definition of IEEE 754,
    /// section 3.4.
    fn value(bits: u16, mantissa_bits: i32, bias: i32) -> f64 {
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1));
        let exponent = i32::from(bits >> mantissa_bits);
        let unit = 2f64.powi(-mantissa_bits);
        match exponent {
            0 => mantissa * unit * 2f64.powi(1 - bias),
            exponent => (1.0 + mantissa * unit) * 2f64.powi(exponent - bias),
        }
    }

    /// Every number, and what lies between it and the next: below the middle, in it, and above.
    fn check(round: fn(f32) -> u16, mantissa_bits: i32, bias: i32, infinity: u16) {
        for bits in 0..infinity {
            let low = value(bits, mantissa_bits, bias);
            let middle = f64::midpoint(low, value(bits + 1, mantissa_bits, bias)) as f32;
            let even = bits + (bits & 1);
            assert_eq!(round(low as f32), bits);
            assert_eq!(round(-(low as f32)), bits | 0x8000);
            assert_eq!(round(middle), even, "halfway above {low}");
            assert_eq!(round(f32::from_bits(middle.to_bits() - 1)), bits, "below {middle}");
            assert_eq!(round(f32::from_bits(middle.to_bits() + 1)), bits + 1, "above {middle}");
        }
        assert_eq!(round(f32::INFINITY), infinity);
        assert_eq!(round(f32::NEG_INFINITY), infinity | 0x8000);
        assert!(round(f32::NAN) & 0x7fff > infinity, "a NaN stays one");
    }

    #[test]
    fn halves_are_the_nearest_and_ties_go_to_even() {
        check(f16_bits, 10, 15, 0x7c00);
        check(bf16_bits, 7, 127, 0x7f80);
    }

    #[test]
    fn a_float_that_is_too_large_is_named() {
        let encoded = |kind: WeightType, x: f32| {
            let mut bytes = Vec::new();
            kind.encode(&[1.0, x], &mut bytes).map(|()| bytes.len())
        };
        assert_eq!(encoded(WeightType::F16, 65_519.0), Ok(4));
        assert_eq!(encoded(WeightType::F16, 65_520.0), Err(65_520.0));
        assert_eq!(encoded(WeightType::F16, f32::INFINITY), Ok(4), "it was none before");
        assert_eq!(encoded(WeightType::Bf16, 3.38e38), Ok(4));
        assert_eq!(encoded(WeightType::Bf16, f32::MAX), Err(f32::MAX));
        assert_eq!(encoded(WeightType::F32, f32::MAX), Ok(8));
    }
}
