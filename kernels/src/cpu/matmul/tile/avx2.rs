//! The AVX2 tiles, in assembly: six rows by a panel.
//!
//! Twelve of sixteen registers hold sums, two the panel's columns of a factor, one the float that
//! meets them. Twelve multiply-adds wait for eight loads, which two load ports serve in two thirds
//! of the time. A strip of sixteen rows is two such tiles and one of four rows, whose eight sums
//! just cover the latency of the two units. On Zen 4 that reaches 91 % of the multiply-add peak,
//! with tiles of 6, 5 and 5 rows 90 %, of 4 by 24 columns 83 %.
//!
//! A strip and a panel together do not fit into a first-level cache of 32 KiB, so a panel comes
//! from the second level: the tall tiles fetch it ahead.

use std::arch::asm;
use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::super::super::lanes::{Avx2, LANES};
use super::{STRIP, Tile, TileKernel};

impl TileKernel for Avx2 {
    const PANELS: usize = 1;
    const HEIGHTS: &'static [usize] = &[6, 6, 4];

    #[inline(always)]
    unsafe fn sum(height: usize, panels: usize, tile: Tile<'_>) {
        assert_eq!(panels, 1);
        // SAFETY: as the caller promises.
        unsafe {
            match height {
                6 => sum_6(tile),
                4 => sum_4(tile),
                other => unreachable!("no tile has {other} rows"),
            }
        }
    }
}

/// Factors in one turn of the loop.
const UNROLL: usize = 4;
/// Vectors of a row of sums.
pub(super) const VECTORS: usize = 2;
/// Floats of a vector.
const HALF: usize = LANES / VECTORS;

/// Fetches the panel eight factors ahead.
macro_rules! fetch_panel {
    ($factor:literal) => {
        concat!("prefetcht0 [{panel} + 64*", $factor, " + 512]\n")
    };
}

/// The panel's columns of a factor. `$factor` is the one within the turn.
macro_rules! columns {
    ($factor:literal) => {
        concat!(
            "vmovups {low}, [{panel} + 64*",
            $factor,
            "]\n",
            "vmovups {high}, [{panel} + 64*",
            $factor,
            " + 32]\n",
        )
    };
}

/// A row of sums.
macro_rules! row {
    ($factor:literal, $row:literal, $low:literal $high:literal) => {
        concat!(
            "vbroadcastss {value}, dword ptr [{left} + 64*",
            $factor,
            " + 4*",
            $row,
            "]\n",
            "vfmadd231ps {",
            $low,
            "}, {low}, {value}\n",
            "vfmadd231ps {",
            $high,
            "}, {high}, {value}\n",
        )
    };
}

/// One factor by four rows.
macro_rules! step_4 {
    ($factor:literal) => {
        concat!(
            columns!($factor),
            row!($factor, 0, "s00" "s01"),
            row!($factor, 1, "s10" "s11"),
            row!($factor, 2, "s20" "s21"),
            row!($factor, 3, "s30" "s31"),
        )
    };
}

/// One factor by six rows.
macro_rules! step_6 {
    ($factor:literal) => {
        concat!(
            fetch_panel!($factor),
            step_4!($factor),
            row!($factor, 4, "s40" "s41"),
            row!($factor, 5, "s50" "s51"),
        )
    };
}

/// The four factors of one turn.
macro_rules! turn {
    ($step:ident) => {
        concat!($step!(0), $step!(1), $step!(2), $step!(3))
    };
}

/// A function that sums as many rows as its rows of sums have names.
macro_rules! kernel {
    ($name:ident, $rows:literal, $step:ident, $([$low:ident $high:ident])+) => {
        /// # Safety
        /// As [`TileKernel::sum`].
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $name(mut tile: Tile<'_>) {
            /// Runs the loop over `$text`, which takes `$factors` factors, `$turns` times.
            macro_rules! run {
                ($text:expr, $factors:expr, $turns:expr, $left:ident, $panel:ident, $sums:ident) => {{
                    let [$([$low, $high]),+] = &mut $sums;
                    asm!(
                        "2:",
                        $text,
                        "add {left}, {left_bytes}",
                        "add {panel}, {panel_bytes}",
                        "dec {turns}",
                        "jnz 2b",
                        $($low = inout(ymm_reg) *$low, $high = inout(ymm_reg) *$high,)+
                        low = out(ymm_reg) _,
                        high = out(ymm_reg) _,
                        value = out(ymm_reg) _,
                        left = inout(reg) $left,
                        panel = inout(reg) $panel,
                        turns = inout(reg) $turns => _,
                        left_bytes = const 4 * STRIP * $factors,
                        panel_bytes = const 4 * LANES * $factors,
                        options(nostack, readonly),
                    );
                }};
            }
            tile.fetch_ahead($rows, $rows != 6);
            let Tile { depth, mut left, mut panel, to, stride, add, .. } = tile;
            let mut sums = [[_mm256_setzero_ps(); VECTORS]; $rows];
            // SAFETY: as the caller promises; a turn reads four of the factors that are there.
            unsafe {
                if depth >= UNROLL {
                    run!(turn!($step), UNROLL, depth / UNROLL, left, panel, sums);
                }
                if depth % UNROLL > 0 {
                    run!($step!(0), 1, depth % UNROLL, left, panel, sums);
                }
                let _ends = (left, panel);
                store(&sums, to, stride, add);
            }
        }
    };
}

kernel!(sum_4, 4, step_4, [s00 s01] [s10 s11] [s20 s21] [s30 s31]);
kernel!(sum_6, 6, step_6, [s00 s01] [s10 s11] [s20 s21] [s30 s31] [s40 s41] [s50 s51]);

/// # Safety
/// `to` is writable over the tile.
#[target_feature(enable = "avx2,fma")]
#[inline]
#[expect(
    clippy::needless_range_loop,
    reason = "an iterator is without AVX2, and its call for each vector is not inlined"
)]
pub(super) unsafe fn store<const ROWS: usize>(
    sums: &[[__m256; VECTORS]; ROWS],
    to: *mut f32,
    stride: usize,
    add: bool,
) {
    for row in 0..ROWS {
        for vector in 0..VECTORS {
            // SAFETY: as the caller promises.
            unsafe {
                let sum = sums[row][vector];
                let to = to.add(row * stride + vector * HALF);
                let total = if add { _mm256_add_ps(_mm256_loadu_ps(to), sum) } else { sum };
                _mm256_storeu_ps(to, total);
            }
        }
    }
}
