//! Lanes in two 256-bit registers.

use std::arch::x86_64::{
    __m128, __m256, __m256i, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_add_ps,
    _mm_add_ss, _mm_cvtss_f32, _mm_max_ps, _mm_max_ss, _mm_movehdup_ps, _mm_movehl_ps,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_andnot_ps, _mm256_andnot_si256,
    _mm256_blend_epi16, _mm256_blendv_epi8, _mm256_blendv_ps, _mm256_castpd_ps, _mm256_castps_pd,
    _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cmp_ps,
    _mm256_cmpgt_epi32, _mm256_cvtps_epi32, _mm256_cvtps_pd, _mm256_div_ps, _mm256_extractf128_ps,
    _mm256_fmadd_pd, _mm256_fmadd_ps, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_min_ps, _mm256_mul_ps, _mm256_or_si256, _mm256_permute2f128_ps, _mm256_permute4x64_pd,
    _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_shuffle_ps,
    _mm256_slli_epi32, _mm256_sqrt_ps, _mm256_srli_epi32, _mm256_storeu_pd, _mm256_storeu_ps,
    _mm256_stream_ps, _mm256_sub_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::{LANES, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(super) __m256, pub(super) __m256);

/// Applies an instruction to both halves.
macro_rules! both {
    ($op:ident($a:expr)) => {
        Self(unsafe { $op($a.0) }, unsafe { $op($a.1) })
    };
    ($op:ident($a:expr, $b:expr)) => {
        Self(unsafe { $op($a.0, $b.0) }, unsafe { $op($a.1, $b.1) })
    };
}

/// Halves combined until one lane is left, with an instruction for eight, for four and for one.
macro_rules! fold {
    ($lanes:expr, $eight:ident, $four:ident, $one:ident) => {
        unsafe {
            let [low, high] = fours_of($eight($lanes.0, $lanes.1));
            let four = $four(low, high);
            let two = $four(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32($one(two, _mm_movehdup_ps(two)))
        }
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
    unsafe fn stream(self, to: *mut f32) {
        unsafe {
            _mm256_stream_ps(to, self.0);
            _mm256_stream_ps(to.add(8), self.1);
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
    fn front(self, count: usize, fill: f32) -> Self {
        unsafe {
            let count = _mm256_set1_epi32(count.min(LANES) as i32);
            let fill = _mm256_set1_ps(fill);
            let low = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let high = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
            Self(
                _mm256_blendv_ps(fill, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(fill, self.1, _mm256_castsi256_ps(high)),
            )
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

    #[inline(always)]
    fn bf16_pairs(self, second: Self) -> Self {
        unsafe { Self(pair_words(self.0, second.0), pair_words(self.1, second.1)) }
    }

    #[inline(always)]
    fn bf16_adjacent(self, next: Self) -> Self {
        unsafe { Self(adjacent_words(self.0, self.1), adjacent_words(next.0, next.1)) }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        fold!(self, _mm256_add_ps, _mm_add_ps, _mm_add_ss)
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        fold!(self, _mm256_max_ps, _mm_max_ps, _mm_max_ss)
    }

    #[inline(always)]
    fn add_squares(self, sums: &mut [f64; LANES / 2]) {
        unsafe {
            let [low, high] = fours_of(self.0);
            let low = _mm256_cvtps_pd(low);
            let high = _mm256_cvtps_pd(high);
            let to = sums.as_mut_ptr();
            _mm256_storeu_pd(to, _mm256_fmadd_pd(low, low, _mm256_loadu_pd(to)));
            let to = to.add(LANES / 4);
            _mm256_storeu_pd(to, _mm256_fmadd_pd(high, high, _mm256_loadu_pd(to)));
        }
    }

    /// Four squares of eight, those off the diagonal exchanged: each fits into registers, all sixteen
    /// rows do not.
    #[inline(always)]
    unsafe fn transpose_square(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            // SAFETY: as the caller promises.
            unsafe {
                let from = from.add(row * stride + column);
                let rows = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * stride)));
                let to = to.add(column * to_stride + row);
                for (i, lanes) in transpose_8(rows).into_iter().enumerate() {
                    _mm256_storeu_ps(to.add(i * to_stride), lanes);
                }
            }
        }
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut square = [[0.0; LANES]; LANES];
        for (lanes, row) in rows.into_iter().zip(&mut square) {
            lanes.write_to(row);
        }
        let from = square;
        // SAFETY: two squares of sixteen by sixteen.
        unsafe {
            Self::transpose_square(
                from.as_flattened().as_ptr(),
                LANES,
                square.as_flattened_mut().as_mut_ptr(),
                LANES,
            );
        }
        let mut columns = rows;
        for (lanes, column) in columns.iter_mut().zip(&square) {
            *lanes = Self::from_slice(column);
        }
        columns
    }
}

/// Words of bfloat16 numbers: of eight pairs.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn pair_words(first: __m256, second: __m256) -> __m256 {
    unsafe {
        let first = _mm256_srli_epi32::<16>(rounded_to_bf16(first));
        _mm256_castsi256_ps(_mm256_blend_epi16::<0b1010_1010>(first, rounded_to_bf16(second)))
    }
}

/// The nearest bfloat16 numbers in the upper halves, as [`super::super::bf16::pair`] rounds.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn rounded_to_bf16(floats: __m256) -> __m256i {
    unsafe {
        let bits = _mm256_castps_si256(floats);
        let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fff_ffff));
        let is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x0080_0000), magnitude);
        let is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f80_0000));
        let bits = _mm256_andnot_si256(_mm256_srli_epi32::<1>(is_subnormal), bits);
        let is_odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        _mm256_blendv_epi8(_mm256_add_epi32(bits, half), quiet, is_nan)
    }
}

/// Words of neighbours among the lanes of two registers.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn adjacent_words(low: __m256, high: __m256) -> __m256 {
    unsafe {
        let first = _mm256_shuffle_ps::<0b10_00_10_00>(low, high);
        let second = _mm256_shuffle_ps::<0b11_01_11_01>(low, high);
        let words = _mm256_castps_pd(pair_words(first, second));
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(words))
    }
}

/// The lower four of eight, and the upper.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn fours_of(eight: __m256) -> [__m128; 2] {
    unsafe { [_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight)] }
}

/// Pairs, then quadruples within 128 bits, then the 128-bit halves among each other.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn transpose_8(rows: [__m256; 8]) -> [__m256; 8] {
    unsafe {
        let mut a = rows;
        for pair in 0..4 {
            a[2 * pair] = _mm256_unpacklo_ps(rows[2 * pair], rows[2 * pair + 1]);
            a[2 * pair + 1] = _mm256_unpackhi_ps(rows[2 * pair], rows[2 * pair + 1]);
        }
        let mut b = a;
        for quad in 0..2 {
            let a = &a[4 * quad..4 * quad + 4];
            b[4 * quad] = _mm256_shuffle_ps::<0b01_00_01_00>(a[0], a[2]);
            b[4 * quad + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a[0], a[2]);
            b[4 * quad + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(a[1], a[3]);
            b[4 * quad + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(a[1], a[3]);
        }
        let mut columns = b;
        for column in 0..4 {
            columns[column] = _mm256_permute2f128_ps::<0x20>(b[column], b[column + 4]);
            columns[column + 4] = _mm256_permute2f128_ps::<0x31>(b[column], b[column + 4]);
        }
        columns
    }
}
