//! Lanes in one 512-bit register.

use std::arch::x86_64::{
    __m512, __m512i, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_castpd_ps,
    _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512, _mm512_castpd_ps, _mm512_castps_pd,
    _mm512_castps_si512, _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cmpgt_epi32_mask, _mm512_cmplt_epi32_mask, _mm512_cvtps_epi32, _mm512_cvtps_pd,
    _mm512_div_ps, _mm512_extractf64x4_pd, _mm512_fmadd_pd, _mm512_fmadd_ps, _mm512_loadu_pd,
    _mm512_loadu_ps, _mm512_mask_and_epi32, _mm512_mask_blend_ps, _mm512_mask_or_epi32,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_or_si512, _mm512_permutex2var_ps,
    _mm512_roundscale_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_ps,
    _mm512_shuffle_f64x2, _mm512_slli_epi32, _mm512_sqrt_ps, _mm512_srli_epi32, _mm512_storeu_pd,
    _mm512_storeu_ps, _mm512_stream_ps, _mm512_sub_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps,
    _mm512_unpacklo_pd, _mm512_unpacklo_ps,
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

/// Words of bfloat16 numbers: of sixteen pairs.
///
/// # Safety
/// The processor has AVX-512F.
#[inline(always)]
unsafe fn pair_words(first: __m512, second: __m512) -> __m512 {
    unsafe {
        let first = _mm512_srli_epi32::<16>(rounded_to_bf16(first));
        let second = rounded_to_bf16(second);
        let upper = _mm512_and_si512(second, _mm512_set1_epi32(!0xffff));
        _mm512_castsi512_ps(_mm512_or_si512(first, upper))
    }
}

/// The nearest bfloat16 numbers in the upper halves, as [`super::super::bf16::pair`] rounds.
///
/// # Safety
/// The processor has AVX-512F.
#[inline(always)]
unsafe fn rounded_to_bf16(floats: __m512) -> __m512i {
    unsafe {
        let bits = _mm512_castps_si512(floats);
        let magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fff_ffff));
        let is_subnormal = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x0080_0000));
        let is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f80_0000));
        let bits = _mm512_mask_and_epi32(bits, is_subnormal, bits, _mm512_set1_epi32(i32::MIN));
        let is_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_add_epi32(bits, half);
        _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x0040_0000))
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
    fn front(self, count: usize, fill: f32) -> Self {
        let front = ((1u32 << count.min(LANES)) - 1) as u16;
        Self(unsafe { _mm512_mask_blend_ps(front, _mm512_set1_ps(fill), self.0) })
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
    fn bf16_pairs(self, second: Self) -> Self {
        Self(unsafe { pair_words(self.0, second.0) })
    }

    #[inline(always)]
    fn bf16_adjacent(self, next: Self) -> Self {
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            let first = _mm512_permutex2var_ps(self.0, even, next.0);
            let second = _mm512_permutex2var_ps(self.0, odd, next.0);
            Self(pair_words(first, second))
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
