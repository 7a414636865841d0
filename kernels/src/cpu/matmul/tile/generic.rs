//! Tiles over [`Lanes`], for instruction sets without a kernel of their own.

use super::super::super::lanes::{LANES, Lanes, Portable};
use super::{ROWS, STRIP, Tile, TileKernel};

/// Rows summed together: with 256-bit registers four rows take eight of sixteen.
const QUARTER: usize = 4;

#[cfg(target_arch = "x86_64")]
impl TileKernel for super::super::super::lanes::Avx2 {
    #[inline(always)]
    unsafe fn sum<const VECTORS: usize>(tile: Tile<'_>) {
        // SAFETY: as the caller promises.
        unsafe { sum_lanes::<Self, VECTORS>(&tile) }
    }
}

impl TileKernel for Portable {
    #[inline(always)]
    unsafe fn sum<const VECTORS: usize>(tile: Tile<'_>) {
        // SAFETY: as the caller promises.
        unsafe { sum_lanes::<Self, VECTORS>(&tile) }
    }
}

/// # Safety
/// As [`TileKernel::sum`].
#[inline(always)]
unsafe fn sum_lanes<L: Lanes, const VECTORS: usize>(tile: &Tile<'_>) {
    for first in (0..ROWS).step_by(QUARTER) {
        for vector in 0..VECTORS {
            // SAFETY: as the caller promises.
            unsafe { sum_quarter::<L, VECTORS>(tile, first, vector) };
        }
    }
}

/// [`QUARTER`] rows from `first` on by one vector.
///
/// # Safety
/// As [`TileKernel::sum`].
#[inline(always)]
unsafe fn sum_quarter<L: Lanes, const VECTORS: usize>(
    tile: &Tile<'_>,
    first: usize,
    vector: usize,
) {
    let mut sums = [L::splat(0.0); QUARTER];
    // SAFETY: as the caller promises.
    unsafe {
        let mut left = tile.left.add(first);
        let mut panel = tile.panel.add(vector * LANES);
        for _ in 0..tile.depth {
            let right = L::load(panel);
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = L::splat(*left.add(row)).mul_add(right, *sum);
            }
            left = left.add(STRIP);
            panel = panel.add(VECTORS * LANES);
        }
        for (row, sum) in sums.into_iter().enumerate() {
            let to = tile.to.add((first + row) * tile.stride + vector * LANES);
            let total = if tile.add { L::load(to).add(sum) } else { sum };
            total.store(to);
        }
    }
}
