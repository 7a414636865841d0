//! The type of products' factors, and bfloat16 on the host.

/// The type of factors of products, and on NVIDIA devices of activations in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floats in memory and in products.
    F32,
    /// bfloat16 as factors of products, whose sums are 32-bit floats.
    Bf16,
}

impl Precision {
    /// Both types.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Bytes of a number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The largest error of a number that is rounded to the type, relative to the number.
    #[must_use]
    pub const fn rounding(self) -> f64 {
        match self {
            Self::F32 => f32::EPSILON as f64 / 2.0,
            Self::Bf16 => 1.0 / 256.0,
        }
    }

    /// The name of the type: `f32` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// The nearest bfloat16, which is the upper half of a float, ties to even; a NaN stays one.
#[must_use]
pub const fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The float that a bfloat16 is.
#[must_use]
#[inline]
pub const fn float_of_bf16(half: u16) -> f32 {
    f32::from_bits((half as u32) << 16)
}

#[cfg(test)]
mod tests {
    use super::{bf16_bits, float_of_bf16};

    #[test]
    fn rounding_is_to_the_nearest_with_ties_to_even() {
        let check =
            |bits: u32, expected: u16| assert_eq!(bf16_bits(f32::from_bits(bits)), expected);
        check(0x3f80_0000, 0x3f80);
        check(0x3f80_7fff, 0x3f80);
        check(0x3f80_8000, 0x3f80);
        check(0x3f80_8001, 0x3f81);
        check(0x3f81_8000, 0x3f82);
        check(0xbf81_8000, 0xbf82);
        check(0x7f7f_ffff, 0x7f80);
        check(0x7f80_0000, 0x7f80);
        check(0x8000_0000, 0x8000);
        assert!(float_of_bf16(bf16_bits(f32::from_bits(0x7f80_0001))).is_nan());
        for bits in 0..=u16::MAX {
            let x = float_of_bf16(bits);
            assert!(x.is_nan() || bf16_bits(x) == bits, "{bits:x} comes back");
        }
    }
}
