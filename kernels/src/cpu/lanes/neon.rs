//! Lanes in four 128-bit registers.

use std::arch::aarch64::{
    float32x2_t, float32x4_t, uint32x4_t, vadd_f32, vaddq_f32, vaddq_s32, vaddq_u32, vandq_u32,
    vbicq_u32, vbsl_f32, vbslq_f32, vbslq_u32, vcgt_f32, vcgtq_f32, vcgtq_u32, vcltq_f32,
    vcltq_u32, vcvt_f64_f32, vcvt_high_f64_f32, vcvtnq_s32_f32, vdivq_f32, vdup_lane_f32,
    vdupq_n_f32, vdupq_n_s32, vdupq_n_u32, vfmaq_f32, vfmaq_f64, vget_high_f32, vget_lane_f32,
    vget_low_f32, vld1q_f32, vld1q_f64, vld1q_u32, vmulq_f32, vorrq_u32, vreinterpretq_f32_f64,
    vreinterpretq_f32_s32, vreinterpretq_f32_u32, vreinterpretq_f64_f32, vreinterpretq_u32_f32,
    vrndnq_f32, vshlq_n_s32, vshrq_n_u32, vsqrtq_f32, vsriq_n_u32, vst1q_f32, vst1q_f64, vsubq_f32,
    vtrn1q_f32, vtrn1q_f64, vtrn2q_f32, vtrn2q_f64, vuzp1q_f32, vuzp2q_f32,
};
use std::arch::asm;

use super::{LANES, Lanes};

/// Floats of a register.
const QUARTER: usize = LANES / 4;

#[derive(Clone, Copy)]
pub(crate) struct Neon(pub(in super::super) [float32x4_t; 4]);

// SAFETY of every block below: every processor of this architecture has NEON.
impl Neon {
    #[inline(always)]
    fn of_quarters(op: impl Fn(usize) -> float32x4_t) -> Self {
        Self([op(0), op(1), op(2), op(3)])
    }

    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self::of_quarters(|i| op(self.0[i], other.0[i]))
    }
}

impl Lanes for Neon {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([unsafe { vdupq_n_f32(x) }; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self::of_quarters(|i| unsafe { vld1q_f32(from.add(i * QUARTER)) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, quarter) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(to.add(i * QUARTER), quarter) };
        }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        let [first, second, third, fourth] = self.0;
        unsafe {
            asm!(
                "stnp {first:q}, {second:q}, [{to}]",
                "stnp {third:q}, {fourth:q}, [{to}, #32]",
                first = in(vreg) first,
                second = in(vreg) second,
                third = in(vreg) third,
                fourth = in(vreg) fourth,
                to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vsubq_f32(a, b) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vdivq_f32(a, b) })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::of_quarters(|i| unsafe { vsqrtq_f32(self.0[i]) })
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self::of_quarters(|i| unsafe { vfmaq_f32(addend.0[i], self.0[i], factor.0[i]) })
    }

    // The instructions for the larger and the smaller give a NaN for either operand's, and order
    // the zeros.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn zero_below(self, decider: Self, bound: Self) -> Self {
        Self::of_quarters(|i| unsafe {
            let is_below = vcltq_f32(decider.0[i], bound.0[i]);
            vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(self.0[i]), is_below))
        })
    }

    #[inline(always)]
    fn front(self, count: usize, fill: f32) -> Self {
        const INDICES: [u32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        Self::of_quarters(|i| unsafe {
            let indices = vld1q_u32(INDICES[i * QUARTER..].as_ptr());
            let is_front = vcltq_u32(indices, vdupq_n_u32(count.min(LANES) as u32));
            vbslq_f32(is_front, self.0[i], vdupq_n_f32(fill))
        })
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self::of_quarters(|i| unsafe { vrndnq_f32(self.0[i]) })
    }

    #[inline(always)]
    fn exp2_whole(self) -> Self {
        Self::of_quarters(|i| unsafe {
            let exponent = vaddq_s32(vcvtnq_s32_f32(self.0[i]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        })
    }

    #[inline(always)]
    fn bf16_pairs(self, second: Self) -> Self {
        self.zip(second, |first, second| unsafe { pair_words(first, second) })
    }

    #[inline(always)]
    fn bf16_adjacent(self, next: Self) -> Self {
        Self::of_quarters(|i| unsafe {
            let two = if i < 2 { self.0 } else { next.0 };
            let [low, high] = [two[2 * i % 4], two[2 * i % 4 + 1]];
            pair_words(vuzp1q_f32(low, high), vuzp2q_f32(low, high))
        })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(vadd_f32(two, vdup_lane_f32::<1>(two)))
        }
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        let larger = |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) };
        let larger_of_two = |a: float32x2_t, b| unsafe { vbsl_f32(vcgt_f32(a, b), a, b) };
        let [a, b, c, d] = self.0;
        let four = larger(larger(a, c), larger(b, d));
        unsafe {
            let two = larger_of_two(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(larger_of_two(two, vdup_lane_f32::<1>(two)))
        }
    }

    #[inline(always)]
    fn add_squares(self, sums: &mut [f64; LANES / 2]) {
        for (sums, x) in sums.chunks_exact_mut(QUARTER).zip(self.0) {
            unsafe {
                let low = vcvt_f64_f32(vget_low_f32(x));
                let high = vcvt_high_f64_f32(x);
                let to = sums.as_mut_ptr();
                vst1q_f64(to, vfmaq_f64(vld1q_f64(to), low, low));
                let to = to.add(2);
                vst1q_f64(to, vfmaq_f64(vld1q_f64(to), high, high));
            }
        }
    }

    /// Sixteen squares of four, those off the diagonal exchanged.
    #[inline(always)]
    unsafe fn transpose_square(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        for row in (0..LANES).step_by(QUARTER) {
            for column in (0..LANES).step_by(QUARTER) {
                // SAFETY: as the caller promises.
                unsafe {
                    let from = from.add(row * stride + column);
                    let load = |i| vld1q_f32(from.add(i * stride));
                    let rows = [load(0), load(1), load(2), load(3)];
                    let to = to.add(column * to_stride + row);
                    for (i, lanes) in transpose_4(rows).into_iter().enumerate() {
                        vst1q_f32(to.add(i * to_stride), lanes);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut columns = rows;
        for row in (0..LANES).step_by(QUARTER) {
            for quarter in 0..4 {
                let square = |i: usize| rows[row + i].0[quarter];
                let square = [square(0), square(1), square(2), square(3)];
                for (i, lanes) in unsafe { transpose_4(square) }.into_iter().enumerate() {
                    columns[quarter * QUARTER + i].0[row / QUARTER] = lanes;
                }
            }
        }
        columns
    }
}

/// Words of bfloat16 numbers: of four pairs.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn pair_words(first: float32x4_t, second: float32x4_t) -> float32x4_t {
    unsafe {
        let words = vsriq_n_u32::<16>(rounded_to_bf16(second), rounded_to_bf16(first));
        vreinterpretq_f32_u32(words)
    }
}

/// The nearest bfloat16 numbers in the upper halves, as [`super::super::bf16::pair`] rounds.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn rounded_to_bf16(floats: float32x4_t) -> uint32x4_t {
    unsafe {
        let bits = vreinterpretq_u32_f32(floats);
        let magnitude = vandq_u32(bits, vdupq_n_u32(0x7fff_ffff));
        let is_subnormal = vcltq_u32(magnitude, vdupq_n_u32(0x0080_0000));
        let is_nan = vcgtq_u32(magnitude, vdupq_n_u32(0x7f80_0000));
        let bits = vbicq_u32(bits, vshrq_n_u32::<1>(is_subnormal));
        let is_odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let half = vaddq_u32(is_odd, vdupq_n_u32(0x7fff));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        vbslq_u32(is_nan, quiet, vaddq_u32(bits, half))
    }
}

/// Pairs, then halves among each other.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn transpose_4([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    unsafe {
        let even = |a, b| vreinterpretq_f64_f32(vtrn1q_f32(a, b));
        let odd = |a, b| vreinterpretq_f64_f32(vtrn2q_f32(a, b));
        let low = |a, b| vreinterpretq_f32_f64(vtrn1q_f64(a, b));
        let high = |a, b| vreinterpretq_f32_f64(vtrn2q_f64(a, b));
        let [a_b_even, a_b_odd, c_d_even, c_d_odd] = [even(a, b), odd(a, b), even(c, d), odd(c, d)];
        [
            low(a_b_even, c_d_even),
            low(a_b_odd, c_d_odd),
            high(a_b_even, c_d_even),
            high(a_b_odd, c_d_odd),
        ]
    }
}
