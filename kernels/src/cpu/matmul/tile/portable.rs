//! The tile in plain Rust.

use super::super::super::lanes::{LANES, Lanes, Portable};
use super::{STRIP, Tile, TileKernel, store_row};

/// Rows of a tile.
const ROWS: usize = 4;

impl TileKernel for Portable {
    const PANELS: usize = 1;
    const HEIGHTS: &'static [usize] = &[ROWS; STRIP / ROWS];

    #[inline(always)]
    unsafe fn sum(height: usize, panels: usize, tile: Tile<'_>) {
        assert!(height == ROWS && panels == 1);
        let Tile { depth, mut left, mut panel, to, stride, add, .. } = tile;
        let mut sums = [Self::splat(0.0); ROWS];
        // SAFETY: as the caller promises.
        unsafe {
            for _ in 0..depth {
                let right = Self::load(panel);
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum = Self::splat(*left.add(row)).mul_add(right, *sum);
                }
                left = left.add(STRIP);
                panel = panel.add(LANES);
            }
            for (row, sum) in sums.into_iter().enumerate() {
                store_row(sum, to.add(row * stride), add);
            }
        }
    }
}
