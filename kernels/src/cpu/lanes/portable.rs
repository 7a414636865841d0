//! Lanes in plain Rust: the definition the others must match bit for bit.

use super::super::bf16::pair;
use super::{LANES, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    /// Lanes that `op` computes. Compilers inline a loop, and not what makes arrays of functions.
    #[inline(always)]
    fn of_lanes(op: impl Fn(usize) -> f32) -> Self {
        let mut lanes = [0.0; LANES];
        for (lane, to) in lanes.iter_mut().enumerate() {
            *to = op(lane);
        }
        Self(lanes)
    }

    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Self::of_lanes(|lane| op(self.0[lane], other.0[lane]))
    }
}

impl Lanes for Portable {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller promises; arrays of floats need no more alignment than a float.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::of_lanes(|lane| self.0[lane].sqrt())
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self::of_lanes(|lane| self.0[lane].mul_add(factor.0[lane], addend.0[lane]))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn zero_below(self, decider: Self, bound: Self) -> Self {
        Self::of_lanes(|lane| if decider.0[lane] < bound.0[lane] { 0.0 } else { self.0[lane] })
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self::of_lanes(|lane| self.0[lane].round_ties_even())
    }

    #[inline(always)]
    fn bf16_pairs(self, second: Self) -> Self {
        self.zip(second, pair)
    }

    #[inline(always)]
    fn bf16_adjacent(self, next: Self) -> Self {
        let both = [self.0, next.0];
        let both = both.as_flattened();
        Self::of_lanes(|lane| pair(both[2 * lane], both[2 * lane + 1]))
    }

    #[inline(always)]
    fn exp2_whole(self) -> Self {
        Self::of_lanes(|lane| {
            let exponent = (self.0[lane] as i32).wrapping_add(127);
            f32::from_bits(exponent.cast_unsigned() << 23)
        })
    }
}
