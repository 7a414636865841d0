//! What a product of bfloat16 factors is on processors, in plain Rust: the definition that the
//! instructions and the code without them meet bit for bit.
//!
//! It is that of x86's `VDPBF16PS` (Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 2), so that a processor which has the instruction multiplies with it. Factors are the
//! bfloat16 numbers nearest to floats, ties to even, and what is subnormal is zero. They go in pairs,
//! two in a word of 32 bits, the first in its lower half; of a pair the second is multiplied and
//! added first. Each multiply-add is fused and rounds to the nearest float, and a result that is
//! subnormal is zero. Where a chain has an odd number of factors, its last word has a zero.

use super::lanes::LANES;
use crate::precision::{bf16_bits, float_of_bf16};

/// The word of two factors.
pub(super) fn pair(first: f32, second: f32) -> f32 {
    let half = |x: f32| u32::from(bf16_bits(without_subnormal(x)));
    f32::from_bits(half(first) | half(second) << 16)
}

/// The factors of a word.
#[inline(always)]
fn halves(word: f32) -> [f32; 2] {
    let bits = word.to_bits();
    [bits as u16, (bits >> 16) as u16].map(float_of_bf16)
}

/// The sum and the products of two words' factors.
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) fn multiply_add_pair(left: f32, right: f32, sum: f32) -> f32 {
    let [first, second] = halves(left);
    let [right_first, right_second] = halves(right);
    multiply_add(first, right_first, multiply_add(second, right_second, sum))
}

/// The same of one word and many, in place of the sums. Loops without branches, which a compiler makes
/// vectors of; where a result may be one that is zero here, all are computed again one by one.
#[inline(always)]
pub(super) fn multiply_add_pairs(left: f32, right: &[f32; LANES], sums: &mut [f32; LANES]) {
    let left = halves(left);
    for of_pair in [1, 0] {
        let factor = left[of_pair];
        let (mut rights, mut next) = ([0.0; LANES], [0.0; LANES]);
        let mut is_edge = false;
        for lane in 0..LANES {
            rights[lane] = halves(right[lane])[of_pair];
            next[lane] = factor.mul_add(rights[lane], sums[lane]);
            is_edge |= next[lane].abs() <= f32::MIN_POSITIVE && next[lane] != 0.0;
        }
        if is_edge {
            for lane in 0..LANES {
                next[lane] = multiply_add(factor, rights[lane], sums[lane]);
            }
        }
        *sums = next;
    }
}

/// A float, or the zero of its sign where it is subnormal.
fn without_subnormal(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// `left * right + sum`, rounded once, where a result is subnormal that is below the least normal
/// float after it was rounded to a float's number of digits.
fn multiply_add(left: f32, right: f32, sum: f32) -> f32 {
    /// Too small to make one of the operands infinite where the result is the least normal float.
    const SCALE: f32 = (1u64 << 40) as f32;
    let result = left.mul_add(right, sum);
    if result.abs() == f32::MIN_POSITIVE {
        // Rounded as if exponents had no least one: it may have been rounded up to the least.
        let scaled = (left * SCALE).mul_add(right, sum * SCALE);
        if scaled.abs() < f32::MIN_POSITIVE * SCALE {
            return 0.0f32.copysign(result);
        }
    }
    without_subnormal(result)
}

/// The instruction whose definition this is.
#[cfg(target_arch = "x86_64")]
pub(super) mod instruction {
    use std::arch::x86_64::{
        __m512bh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_storeu_ps,
    };
    use std::sync::OnceLock;

    use super::super::lanes::LANES;
    use super::multiply_add_pair;
    use crate::fingerprint::{GOLDEN, mix};

    /// Vectors of words that are compared.
    const VECTORS: u64 = 256;

    /// Whether the processor has the instruction, and it computes what is defined here.
    pub(in super::super) fn is_as_defined() -> bool {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bf16")
                // SAFETY: the processor has the instruction.
                && (0..VECTORS).all(|at| unsafe { agrees(at) })
        })
    }

    /// Whether one vector of words has the results that are defined.
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn agrees(at: u64) -> bool {
        let draw = |operand: u64| -> [f32; LANES] {
            std::array::from_fn(|lane| edge(mix((at * 64 + operand * 16 + lane as u64) * GOLDEN)))
        };
        let [left, right, sums] = [0, 1, 2].map(draw);
        let mut found = [0.0; LANES];
        // SAFETY: each array holds sixteen words, and a vector of halves has the bits of one of words.
        unsafe {
            let halves = |words: &[f32; LANES]| -> __m512bh {
                std::mem::transmute(_mm512_loadu_si512(words.as_ptr().cast()))
            };
            let sums = _mm512_loadu_ps(sums.as_ptr());
            let found_lanes = _mm512_dpbf16_ps(sums, halves(&left), halves(&right));
            _mm512_storeu_ps(found.as_mut_ptr(), found_lanes);
        }
        (0..LANES).all(|lane| {
            let expected = multiply_add_pair(left[lane], right[lane], sums[lane]);
            found[lane].to_bits() == expected.to_bits()
        })
    }

    /// A word of two normal halves, whose products with others are near the least normal float or
    /// near one; read as a float it is such a float.
    fn edge(bits: u64) -> f32 {
        let exponent = match bits >> 62 {
            0 => 0x3f80,
            1 => 0x2000,
            2 => 0x1f80,
            _ => 0x0080,
        };
        let half = |bits: u64| (bits as u32 & 0x80ff) + exponent;
        f32::from_bits(half(bits) | half(bits >> 16) << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::{multiply_add, pair};

    #[test]
    fn a_result_is_zero_that_was_rounded_up_to_the_least_normal_float() {
        let least = f32::MIN_POSITIVE;
        // In units of the last digit below the least normal float, 2^-150: 0.5 and 0.625.
        let unit = 2.0f32.powi(-75);
        assert_eq!(multiply_add(-unit, unit / 2.0, least).to_bits(), least.to_bits());
        assert_eq!(multiply_add(-unit, unit * 0.625, least).to_bits(), 0);
        assert_eq!(multiply_add(unit, unit * 0.625, -least).to_bits(), (-0.0f32).to_bits());
        assert_eq!(multiply_add(0.0, 1.0, least).to_bits(), least.to_bits());
        assert_eq!(multiply_add(least, 0.5, 0.0).to_bits(), 0);
    }

    #[test]
    fn a_word_has_the_first_factor_in_its_lower_half_and_no_subnormal_one() {
        assert_eq!(pair(1.0, -2.0).to_bits(), 0xc000_3f80);
        assert_eq!(pair(f32::from_bits(0x807f_ffff), f32::from_bits(1)).to_bits(), 0x0000_8000);
        assert_eq!(pair(f32::from_bits(0x3f80_8000), 0.0).to_bits(), 0x3f80);
        assert_eq!(pair(f32::NAN, f32::INFINITY).to_bits(), 0x7f80_7fc0);
    }
}
