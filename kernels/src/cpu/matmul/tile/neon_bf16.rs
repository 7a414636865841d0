//! The tile of bfloat16 factors with NEON, in assembly: four rows by a panel.
//!
//! A word's two factors are made floats with a mask and a shift, the panel's once for all rows, and
//! multiplied one after the other. Sixteen of thirty-two registers hold sums, eight the panel's
//! columns of both factors, two the rows' floats. Of 50 instructions for a word 32 are the
//! multiply-adds.
//!
//! The definition ([`super::super::super::bf16`]) has zeros for results that are subnormal once they
//! are rounded. A processor of this architecture makes zeros of those that are before (Arm
//! Architecture Reference Manual, FPCR.FZ), and then sets FPSR.UFC: a tile that set it is computed
//! again in plain Rust. The instructions for bfloat16 numbers that some of these processors have
//! (BFDOT, BFMMLA) round otherwise than the definition.

use std::arch::aarch64::vdupq_n_u32;
use std::arch::asm;

use super::super::super::lanes::{LANES, Lanes, Neon};
use super::bf16::PortableBf16;
use super::neon::row;
use super::{STRIP, Tile, TileKernel, store_row};

/// The tile of a processor that has NEON.
pub(super) struct NeonBf16;

impl TileKernel for NeonBf16 {
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
/// The control register while a tile is summed: to the nearest, zeros for subnormal numbers, no
/// traps.
const FLUSH_SUBNORMAL: u64 = 1 << 24;
/// The bit of the status register that says a result was subnormal.
const UNDERFLOW: u64 = 1 << 3;

/// The panel's columns of a word: the second factor is what a mask leaves, the first is shifted.
macro_rules! columns {
    ($($word:literal to $second:literal),+) => {
        concat!($(
            "and {", $second, ":v}.16b, {", $word, ":v}.16b, {upper:v}.16b\n",
            "shl {", $word, ":v}.4s, {", $word, ":v}.4s, #16\n",
        )+)
    };
}

/// Four rows of sums: the second factors, then the first.
macro_rules! rows {
    ($([$lane:literal $($sum:literal)+])+) => {
        concat!(
            $(row!("second", $lane, $($sum)+ by "d0" "d1" "d2" "d3"),)+
            $(row!("first", $lane, $($sum)+ by "c0" "c1" "c2" "c3"),)+
        )
    };
}

/// # Safety
/// As [`TileKernel::sum`].
unsafe fn sum_4(mut tile: Tile<'_>) {
    tile.fetch_ahead(ROWS, false);
    let Tile { depth, left, panel, to, stride, add, .. } = tile;
    let mut sums = [Neon::splat(0.0); ROWS];
    let [
        Neon([s00, s01, s02, s03]),
        Neon([s10, s11, s12, s13]),
        Neon([s20, s21, s22, s23]),
        Neon([s30, s31, s32, s33]),
    ] = &mut sums;
    let status: u64;
    // SAFETY: as the caller promises; the control register is what it was behind the loop.
    unsafe {
        asm!(
            "mrs {control}, fpcr",
            "msr fpcr, {flush}",
            "msr fpsr, xzr",
            "2:",
            "prfm pldl1keep, [{panel}, #512]",
            "ldp {c0:q}, {c1:q}, [{panel}]",
            "ldp {c2:q}, {c3:q}, [{panel}, #32]",
            "ldr {first:q}, [{left}]",
            columns!("c0" to "d0", "c1" to "d1", "c2" to "d2", "c3" to "d3", "first" to "second"),
            rows!(
                [0 "s00" "s01" "s02" "s03"]
                [1 "s10" "s11" "s12" "s13"]
                [2 "s20" "s21" "s22" "s23"]
                [3 "s30" "s31" "s32" "s33"]
            ),
            "add {left}, {left}, {left_bytes}",
            "add {panel}, {panel}, {panel_bytes}",
            "subs {words}, {words}, #1",
            "b.ne 2b",
            "mrs {flush}, fpsr",
            "msr fpcr, {control}",
            s00 = inout(vreg) *s00, s01 = inout(vreg) *s01, s02 = inout(vreg) *s02,
            s03 = inout(vreg) *s03, s10 = inout(vreg) *s10, s11 = inout(vreg) *s11,
            s12 = inout(vreg) *s12, s13 = inout(vreg) *s13, s20 = inout(vreg) *s20,
            s21 = inout(vreg) *s21, s22 = inout(vreg) *s22, s23 = inout(vreg) *s23,
            s30 = inout(vreg) *s30, s31 = inout(vreg) *s31, s32 = inout(vreg) *s32,
            s33 = inout(vreg) *s33,
            c0 = out(vreg) _,
            c1 = out(vreg) _,
            c2 = out(vreg) _,
            c3 = out(vreg) _,
            d0 = out(vreg) _,
            d1 = out(vreg) _,
            d2 = out(vreg) _,
            d3 = out(vreg) _,
            first = out(vreg) _,
            second = out(vreg) _,
            upper = in(vreg) vdupq_n_u32(0xffff_0000),
            left = inout(reg) left => _,
            panel = inout(reg) panel => _,
            words = inout(reg) depth => _,
            control = out(reg) _,
            flush = inout(reg) FLUSH_SUBNORMAL => status,
            left_bytes = const 4 * STRIP,
            panel_bytes = const 4 * LANES,
            options(nostack, readonly),
        );
        if status & UNDERFLOW != 0 {
            return PortableBf16::sum(ROWS, 1, tile);
        }
        for (row, sums) in sums.into_iter().enumerate() {
            store_row(sums, to.add(row * stride), add);
        }
    }
}
