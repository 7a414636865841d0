//! Lanes in two 256-bit registers.

use std::arch::x86_64::{
    __m256, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_add_epi32,
    _mm256_add_ps, _mm256_andnot_ps, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtps_epi32,
    _mm256_div_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps,
    _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_sqrt_ps,
    _mm256_storeu_ps, _mm256_sub_ps,
};

use super::Lanes;

#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// Applies an instruction to both halves.
macro_rules! both {
    ($op:ident($a:expr)) => {
        Self(unsafe { $op($a.0) }, unsafe { $op($a.1) })
    };
    ($op:ident($a:expr, $b:expr)) => {
        Self(unsafe { $op($a.0, $b.0) }, unsafe { $op($a.1, $b.1) })
    };
}

// SAFETY of every block below: a value exists only where `dispatch!` checked for AVX2 and FMA.
impl Lanes for Avx2 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        let half = unsafe { _mm256_set1_ps(x) };
        Self(half, half)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        both!(_mm256_add_ps(self, other))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        both!(_mm256_sub_ps(self, other))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        both!(_mm256_mul_ps(self, other))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        both!(_mm256_div_ps(self, other))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        both!(_mm256_sqrt_ps(self))
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, factor.0, addend.0),
                _mm256_fmadd_ps(self.1, factor.1, addend.1),
            )
        }
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        both!(_mm256_max_ps(self, other))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        both!(_mm256_min_ps(self, other))
    }

    #[inline(always)]
    fn zero_below(self, decider: Self, bound: Self) -> Self {
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(decider.0, bound.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(decider.1, bound.1);
            Self(_mm256_andnot_ps(low, self.0), _mm256_andnot_ps(high, self.1))
        }
    }

    #[inline(always)]
    fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { Self(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)) }
    }

    #[inline(always)]
    fn exp2_whole(self) -> Self {
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), bias);
            let high = _mm256_add_epi32(_mm256_cvtps_epi32(self.1), bias);
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(high)),
            )
        }
    }
}
