//! Lanes in one 512-bit register.

use std::arch::x86_64::{
    __m512, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_castpd_ps,
    _mm512_add_epi32, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps512_ps256,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtps_epi32, _mm512_cvtps_pd, _mm512_div_ps,
    _mm512_extractf64x4_pd, _mm512_fmadd_pd, _mm512_fmadd_ps, _mm512_loadu_pd, _mm512_loadu_ps,
    _mm512_mask_blend_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_roundscale_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f64x2, _mm512_slli_epi32,
    _mm512_sqrt_ps, _mm512_storeu_pd, _mm512_storeu_ps, _mm512_stream_ps, _mm512_sub_ps,
    _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use super::{Avx2, LANES, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Avx512 {
    /// As two registers of 256 bits, whose instructions `dispatch!` checked for as well.
    #[inline(always)]
    fn halves(self) -> Avx2 {
        // SAFETY: as below.
        unsafe {
            let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0));
            Avx2(_mm512_castps512_ps256(self.0), _mm256_castpd_ps(high))
        }
    }
}

// SAFETY of every block below: a value exists only where `dispatch!` checked for AVX-512F.
impl Lanes for Avx512 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe { _mm512_stream_ps(to, self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(unsafe { _mm512_sqrt_ps(self.0) })
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn zero_below(self, decider: Self, bound: Self) -> Self {
        unsafe {
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(decider.0, bound.0);
            Self(_mm512_mask_blend_ps(below, self.0, _mm512_setzero_ps()))
        }
    }

    #[inline(always)]
    fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        Self(unsafe { _mm512_roundscale_ps::<NEAREST>(self.0) })
    }

    #[inline(always)]
    fn exp2_whole(self) -> Self {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.halves().sum()
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.halves().max_lane()
    }

    #[inline(always)]
    fn add_squares(self, sums: &mut [f64; LANES / 2]) {
        unsafe {
            let wide = _mm512_cvtps_pd(_mm512_castps512_ps256(self.0));
            let sum = _mm512_fmadd_pd(wide, wide, _mm512_loadu_pd(sums.as_ptr()));
            _mm512_storeu_pd(sums.as_mut_ptr(), sum);
        }
    }

    /// Pairs, then quadruples within 128 bits, then the 128-bit pieces among each other.
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        unsafe {
            let mut a = [_mm512_castps_pd(rows[0].0); LANES];
            for (a, row) in a.iter_mut().zip(rows) {
                *a = _mm512_castps_pd(row.0);
            }
            let mut b = a;
            for pair in 0..8 {
                let x = _mm512_castpd_ps(a[2 * pair]);
                let y = _mm512_castpd_ps(a[2 * pair + 1]);
                b[2 * pair] = _mm512_castps_pd(_mm512_unpacklo_ps(x, y));
                b[2 * pair + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(x, y));
            }
            for quad in 0..4 {
                let b = &b[4 * quad..4 * quad + 4];
                a[4 * quad] = _mm512_unpacklo_pd(b[0], b[2]);
                a[4 * quad + 1] = _mm512_unpackhi_pd(b[0], b[2]);
                a[4 * quad + 2] = _mm512_unpacklo_pd(b[1], b[3]);
                a[4 * quad + 3] = _mm512_unpackhi_pd(b[1], b[3]);
            }
            for column in 0..4 {
                let w = a[column];
                let x = a[4 + column];
                let y = a[8 + column];
                let z = a[12 + column];
                b[column] = _mm512_shuffle_f64x2::<0b10_00_10_00>(w, x);
                b[4 + column] = _mm512_shuffle_f64x2::<0b11_01_11_01>(w, x);
                b[8 + column] = _mm512_shuffle_f64x2::<0b10_00_10_00>(y, z);
                b[12 + column] = _mm512_shuffle_f64x2::<0b11_01_11_01>(y, z);
            }
            for column in 0..4 {
                let w = b[column];
                let x = b[4 + column];
                let y = b[8 + column];
                let z = b[12 + column];
                a[column] = _mm512_shuffle_f64x2::<0b10_00_10_00>(w, y);
                a[8 + column] = _mm512_shuffle_f64x2::<0b11_01_11_01>(w, y);
                a[4 + column] = _mm512_shuffle_f64x2::<0b10_00_10_00>(x, z);
                a[12 + column] = _mm512_shuffle_f64x2::<0b11_01_11_01>(x, z);
            }
            let mut columns = rows;
            for (column, a) in columns.iter_mut().zip(a) {
                *column = Self(_mm512_castpd_ps(a));
            }
            columns
        }
    }
}
