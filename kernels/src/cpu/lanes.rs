//! Sixteen 32-bit floats at once, for registers of any width.
//!
//! Every elementwise loop and every reduction of the CPU backend is written once over [`Lanes`].
//! The count is part of the arithmetic's definition, not of the processor: a reduction runs over
//! sixteen virtual lanes and one fixed tree, so AVX-512, AVX2, NEON and plain Rust give the same bits.
//! Multiply-add is always fused and always called by name; nothing is contracted silently.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// The number of virtual lanes.
pub(crate) const LANES: usize = 16;

/// A vector of sixteen floats.
///
/// Values exist only inside functions that [`dispatch!`] made, which checked that the processor
/// has the instructions; that makes the safe methods safe.
pub(crate) trait Lanes: Copy {
    /// A vector whose lanes are all `x`.
    fn splat(x: f32) -> Self;

    /// Sixteen floats from `from`.
    ///
    /// # Safety
    /// `from` is valid for reading sixteen floats; no alignment is required.
    unsafe fn load(from: *const f32) -> Self;

    /// Sixteen floats to `to`.
    ///
    /// # Safety
    /// `to` is valid for writing sixteen floats; no alignment is required.
    unsafe fn store(self, to: *mut f32);

    /// Sixteen floats to `to` past the caches, for what is read much later; [`fence`] must follow
    /// before another thread may read them.
    ///
    /// # Safety
    /// `to` is valid for writing sixteen floats, and a multiple of 64 bytes.
    unsafe fn stream(self, to: *mut f32);

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// `self > other ? self : other` lane by lane, so a NaN in `other` stays.
    fn max(self, other: Self) -> Self;
    /// `self < other ? self : other` lane by lane, so a NaN in `other` stays.
    fn min(self, other: Self) -> Self;
    /// Zero where `self < bound`, else `self`; a NaN stays.
    fn zero_below(self, decider: Self, bound: Self) -> Self;
    /// The first `count` lanes, and `fill` in those behind them.
    #[inline(always)]
    fn front(self, count: usize, fill: f32) -> Self {
        let mut lanes = self.to_array();
        lanes[count.min(LANES)..].fill(fill);
        Self::from_slice(&lanes)
    }

    /// The nearest whole number, ties to even.
    fn round(self) -> Self;
    /// Two to the power of `self`, which holds whole numbers from -126 to 127.
    fn exp2_whole(self) -> Self;

    /// Words of two bfloat16 numbers each, as [`super::bf16::pair`] makes them: lane `i` of `self`, and of
    /// `second`.
    fn bf16_pairs(self, second: Self) -> Self;
    /// The same of neighbours: lanes `2i` and `2i + 1` of `self`, and then of `next`.
    fn bf16_adjacent(self, next: Self) -> Self;

    /// Row `i` of the result is lane `i` of each row.
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut square = [[0.0; LANES]; LANES];
        for (row, lanes) in rows.into_iter().enumerate() {
            for (column, x) in lanes.to_array().into_iter().enumerate() {
                square[column][row] = x;
            }
        }
        let mut result = rows;
        for (to, row) in result.iter_mut().zip(&square) {
            *to = Self::from_slice(row);
        }
        result
    }

    /// Sixteen rows of sixteen floats from `from`, `stride` floats apart, as sixteen columns to
    /// `to`, `to_stride` floats apart.
    ///
    /// # Safety
    /// All of them are readable and writable; no alignment is required.
    #[inline(always)]
    unsafe fn transpose_square(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        let mut rows = [Self::splat(0.0); LANES];
        for (index, row) in rows.iter_mut().enumerate() {
            // SAFETY: as the caller promises.
            *row = unsafe { Self::load(from.add(index * stride)) };
        }
        for (index, column) in Self::transpose(rows).into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { column.store(to.add(index * to_stride)) };
        }
    }

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array holds sixteen floats.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }

    /// Lanes from the first sixteen floats of `from`.
    #[inline(always)]
    fn from_slice(from: &[f32]) -> Self {
        assert!(from.len() >= LANES);
        // SAFETY: the slice holds sixteen floats.
        unsafe { Self::load(from.as_ptr()) }
    }

    /// Writes the lanes to the first sixteen floats of `to`.
    #[inline(always)]
    fn write_to(self, to: &mut [f32]) {
        assert!(to.len() >= LANES);
        // SAFETY: the slice holds sixteen floats.
        unsafe { self.store(to.as_mut_ptr()) };
    }

    /// Adds the squares of the first eight lanes to `sums`, in f64.
    #[inline(always)]
    fn add_squares(self, sums: &mut [f64; LANES / 2]) {
        for (sum, x) in sums.iter_mut().zip(self.to_array()) {
            *sum += f64::from(x) * f64::from(x);
        }
    }

    /// Lanes from `floats[at..]`; those beyond the end are `fill`.
    #[inline(always)]
    fn load_at(floats: &[f32], at: usize, fill: f32) -> Self {
        match floats[at..].first_chunk::<LANES>() {
            Some(lanes) => Self::from_slice(lanes),
            None => Self::from_slice(&filled(&floats[at..], fill)),
        }
    }

    /// Writes lanes to `floats[at..]`, as many as the slice holds.
    #[inline(always)]
    fn store_at(self, floats: &mut [f32], at: usize) {
        let to = &mut floats[at..];
        if to.len() >= LANES {
            self.write_to(to);
        } else {
            copy_front(&self.to_array(), to);
        }
    }

    /// The sum of the lanes: halves added until one is left.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self.to_array();
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
            half /= 2;
        }
        lanes[0]
    }

    /// The largest lane, halves compared until one is left as [`Self::max`] compares.
    #[inline(always)]
    fn max_lane(self) -> f32 {
        let mut lanes = self.to_array();
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                let a = lanes[lane];
                let b = lanes[lane + half];
                lanes[lane] = if a > b { a } else { b };
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// Whether floats lie where [`Lanes::stream`] may write them.
pub(crate) fn is_line_aligned(floats: &[f32]) -> bool {
    floats.as_ptr().addr().is_multiple_of(LANES * size_of::<f32>())
}

/// Orders what was streamed before everything that this thread writes from here on. On aarch64 the
/// release that passes the memory on orders it as any other store.
pub(crate) fn fence() {
    // SAFETY: every processor of this architecture has SSE.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Up to sixteen floats, the missing ones `fill`. Kept out of loops, so that whole vectors stay in
/// registers there.
#[cold]
#[inline(never)]
fn filled(from: &[f32], fill: f32) -> [f32; LANES] {
    let mut lanes = [fill; LANES];
    lanes[..from.len()].copy_from_slice(from);
    lanes
}

/// The first of sixteen floats, as many as `to` holds; kept out of loops as [`filled`] is.
#[cold]
#[inline(never)]
fn copy_front(lanes: &[f32; LANES], to: &mut [f32]) {
    to.copy_from_slice(&lanes[..to.len()]);
}

/// Makes a function that runs one generic over [`Lanes`] with the instructions of a given set.
///
/// `dispatch!(fn name(a: A, b: B) -> R = generic)` gives
/// `fn name(set: InstructionSet, a: A, b: B) -> R`, where `generic` is an `#[inline(always)]`
/// function `fn generic<L: Lanes>(a: A, b: B) -> R`.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?
        = $generic:ident) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(
            set: $crate::cpu::instruction_set::InstructionSet, $($arg: $ty),*
        ) $(-> $ret)? {
            use $crate::cpu::instruction_set::InstructionSet;
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $generic::<$crate::cpu::lanes::Avx512>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $generic::<$crate::cpu::lanes::Avx2>($($arg),*)
            }
            // Without the instruction each multiply-add is a call of a function, with the same bits.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "fma")]
            #[allow(clippy::too_many_arguments)]
            fn portable_fused($($arg: $ty),*) $(-> $ret)? {
                $generic::<$crate::cpu::lanes::Portable>($($arg),*)
            }
            match set {
                // SAFETY: `CpuBackend::new` takes only sets that the processor has.
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                InstructionSet::Neon => $generic::<$crate::cpu::lanes::Neon>($($arg),*),
                // SAFETY: the processor has the instruction.
                #[cfg(target_arch = "x86_64")]
                InstructionSet::Portable if is_x86_feature_detected!("fma") => unsafe {
                    portable_fused($($arg),*)
                },
                InstructionSet::Portable => {
                    $generic::<$crate::cpu::lanes::Portable>($($arg),*)
                }
            }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use super::{LANES, Lanes};
    use crate::cpu::instruction_set::InstructionSet;

    dispatch!(fn front_of(lanes: &mut [f32], count: usize, fill: f32) = front_of_lanes);

    #[inline(always)]
    fn front_of_lanes<L: Lanes>(lanes: &mut [f32], count: usize, fill: f32) {
        L::from_slice(lanes).front(count, fill).write_to(lanes);
    }

    #[test]
    fn what_lies_behind_the_front_is_filled_in_every_instruction_set() {
        for set in InstructionSet::available() {
            for count in 0..LANES + 2 {
                let mut lanes: Vec<f32> = (0..LANES).map(|lane| 1.0 + lane as f32).collect();
                let mut expected = lanes.clone();
                expected[count.min(LANES)..].fill(f32::NEG_INFINITY);
                front_of(set, &mut lanes, count, f32::NEG_INFINITY);
                assert_eq!(lanes, expected, "{set:?}, {count} in front");
            }
        }
    }
}
