//! The tile of bfloat16 factors on processors without an instruction for them, in assembly: four rows
//! by a panel, with AVX2.
//!
//! A word's two factors are made floats with a mask and a shift, the panel's once for all rows, and
//! multiplied one after the other. Eight of sixteen registers hold sums, four the panel's columns of
//! both factors, two a row's. Of 34 instructions for a word sixteen multiply-adds are what a tile of
//! floats has as well.
//!
//! The definition ([`super::super::super::bf16`]) has zeros for results that are subnormal, as the
//! instruction has: the processor's flag for that is set while a tile is summed.

use std::arch::asm;
use std::arch::x86_64::{_mm256_set1_epi32, _mm256_setzero_ps};

use super::super::super::lanes::LANES;
use super::avx2::{VECTORS, store};
use super::{STRIP, Tile, TileKernel};

/// The tile of a processor that has AVX2, and no instruction for bfloat16 that is used.
pub(super) struct Avx2Bf16;

impl TileKernel for Avx2Bf16 {
    const PANELS: usize = 1;
    const HEIGHTS: &'static [usize] = &[ROWS; STRIP / ROWS];

    #[inline(always)]
    unsafe fn sum(height: usize, panels: usize, tile: Tile<'_>) {
        assert!(height == ROWS && panels == 1);
        // SAFETY: as the caller promises.
        unsafe { sum_4(tile) }
    }
}

/// Rows of a tile.
const ROWS: usize = 4;
/// The control register while a tile is summed: exceptions masked, to the nearest, and zeros for
/// subnormal operands and results.
const FLUSH_SUBNORMAL: u32 = 0x9fc0;

/// A row of sums: its word's second factor, then its first.
macro_rules! row {
    ($row:literal, $low:literal $high:literal) => {
        concat!(
            "vpbroadcastd {first}, dword ptr [{left} + 4*",
            $row,
            "]\n",
            "vpand {second}, {first}, {upper}\n",
            "vpslld {first}, {first}, 16\n",
            "vfmadd231ps {",
            $low,
            "}, {low_second}, {second}\n",
            "vfmadd231ps {",
            $high,
            "}, {high_second}, {second}\n",
            "vfmadd231ps {",
            $low,
            "}, {low_first}, {first}\n",
            "vfmadd231ps {",
            $high,
            "}, {high_first}, {first}\n",
        )
    };
}

/// # Safety
/// As [`TileKernel::sum`].
#[target_feature(enable = "avx2,fma")]
unsafe fn sum_4(mut tile: Tile<'_>) {
    tile.fetch_ahead(ROWS, false);
    let Tile { depth, left, panel, to, stride, add, .. } = tile;
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
    let [[s00, s01], [s10, s11], [s20, s21], [s30, s31]] = &mut sums;
    let mut control = [0u32, FLUSH_SUBNORMAL];
    // SAFETY: as the caller promises; the control register is what it was behind the loop.
    unsafe {
        asm!(
            "stmxcsr [{control}]",
            "ldmxcsr [{control} + 4]",
            "2:",
            "prefetcht0 [{panel} + 512]",
            "vmovdqu {low_first}, [{panel}]",
            "vmovdqu {high_first}, [{panel} + 32]",
            "vpand {low_second}, {low_first}, {upper}",
            "vpand {high_second}, {high_first}, {upper}",
            "vpslld {low_first}, {low_first}, 16",
            "vpslld {high_first}, {high_first}, 16",
            row!(0, "s00" "s01"),
            row!(1, "s10" "s11"),
            row!(2, "s20" "s21"),
            row!(3, "s30" "s31"),
            "add {left}, {left_bytes}",
            "add {panel}, {panel_bytes}",
            "dec {words}",
            "jnz 2b",
            "ldmxcsr [{control}]",
            s00 = inout(ymm_reg) *s00, s01 = inout(ymm_reg) *s01,
            s10 = inout(ymm_reg) *s10, s11 = inout(ymm_reg) *s11,
            s20 = inout(ymm_reg) *s20, s21 = inout(ymm_reg) *s21,
            s30 = inout(ymm_reg) *s30, s31 = inout(ymm_reg) *s31,
            low_first = out(ymm_reg) _,
            low_second = out(ymm_reg) _,
            high_first = out(ymm_reg) _,
            high_second = out(ymm_reg) _,
            first = out(ymm_reg) _,
            second = out(ymm_reg) _,
            upper = in(ymm_reg) _mm256_set1_epi32(!0xffff),
            left = inout(reg) left => _,
            panel = inout(reg) panel => _,
            words = inout(reg) depth => _,
            control = in(reg) control.as_mut_ptr(),
            left_bytes = const 4 * STRIP,
            panel_bytes = const 4 * LANES,
            options(nostack),
        );
        store(&sums, to, stride, add);
    }
}
