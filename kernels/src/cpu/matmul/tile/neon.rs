//! The NEON tiles, in assembly: six rows by a panel.
//!
//! Twenty-four of thirty-two registers hold sums, four the panel's columns of a factor, two the
//! floats that meet them: an instruction multiplies a register by one float of another, so that
//! none is spread first. Twenty-four multiply-adds wait for four loads. A strip of sixteen rows is
//! two such tiles and one of four rows, whose sixteen sums cover a latency of four cycles on four
//! units (Arm Neoverse V1 Software Optimization Guide). Wider registers of SVE gain nothing there: of the
//! same units two at a time make one of 256 bits.

use std::arch::asm;

use super::super::super::lanes::{LANES, Lanes, Neon};
use super::{STRIP, Tile, TileKernel, store_row};

impl TileKernel for Neon {
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

/// The panel's columns of a factor and the first four rows' floats. `$factor` is the one within the
/// turn; the panel is fetched eight factors ahead.
macro_rules! columns {
    ($factor:literal) => {
        concat!(
            "prfm pldl1keep, [{panel}, #64*",
            $factor,
            " + 512]\n",
            "ldp {c0:q}, {c1:q}, [{panel}, #64*",
            $factor,
            "]\n",
            "ldp {c2:q}, {c3:q}, [{panel}, #64*",
            $factor,
            " + 32]\n",
            "ldr {front:q}, [{left}, #64*",
            $factor,
            "]\n",
        )
    };
}

/// A row of sums, by float `$lane` of `$rows`.
macro_rules! row {
    ($rows:literal, $lane:literal, $($sum:literal)+ by $($column:literal)+) => {
        concat!($(
            "fmla {", $sum, ":v}.4s, {", $column, ":v}.4s, {", $rows, ":v}.s[", $lane, "]\n",
        )+)
    };
}
pub(super) use row;

/// One factor by four rows.
macro_rules! step_4 {
    ($factor:literal) => {
        concat!(
            columns!($factor),
            row!("front", 0, "s00" "s01" "s02" "s03" by "c0" "c1" "c2" "c3"),
            row!("front", 1, "s10" "s11" "s12" "s13" by "c0" "c1" "c2" "c3"),
            row!("front", 2, "s20" "s21" "s22" "s23" by "c0" "c1" "c2" "c3"),
            row!("front", 3, "s30" "s31" "s32" "s33" by "c0" "c1" "c2" "c3"),
        )
    };
}

/// One factor by six rows.
macro_rules! step_6 {
    ($factor:literal) => {
        concat!(
            "ldr {back:d}, [{left}, #64*",
            $factor,
            " + 16]\n",
            step_4!($factor),
            row!("back", 0, "s40" "s41" "s42" "s43" by "c0" "c1" "c2" "c3"),
            row!("back", 1, "s50" "s51" "s52" "s53" by "c0" "c1" "c2" "c3"),
        )
    };
}

/// The four factors of one turn.
macro_rules! turn {
    ($step:ident) => {
        concat!($step!(0), $step!(1), $step!(2), $step!(3))
    };
}

/// A function that sums as many rows as its rows of sums have names. `$back` holds the floats of the
/// rows behind the fourth.
macro_rules! kernel {
    (
        $name:ident, $rows:literal, $step:ident, $([$a:ident $b:ident $c:ident $d:ident])+
        $(, $back:ident)?
    ) => {
        /// # Safety
        /// As [`TileKernel::sum`].
        unsafe fn $name(mut tile: Tile<'_>) {
            /// Runs the loop over `$text`, which takes `$factors` factors, `$turns` times.
            macro_rules! run {
                ($text:expr, $factors:expr, $turns:expr, $left:ident, $panel:ident, $sums:ident) => {{
                    let [$(Neon([$a, $b, $c, $d])),+] = &mut $sums;
                    asm!(
                        "2:",
                        $text,
                        "add {left}, {left}, {left_bytes}",
                        "add {panel}, {panel}, {panel_bytes}",
                        "subs {turns}, {turns}, #1",
                        "b.ne 2b",
                        $($a = inout(vreg) *$a, $b = inout(vreg) *$b,)+
                        $($c = inout(vreg) *$c, $d = inout(vreg) *$d,)+
                        c0 = out(vreg) _,
                        c1 = out(vreg) _,
                        c2 = out(vreg) _,
                        c3 = out(vreg) _,
                        front = out(vreg) _,
                        $($back = out(vreg) _,)?
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
            let mut sums = [Neon::splat(0.0); $rows];
            // SAFETY: as the caller promises; a turn reads four of the factors that are there.
            unsafe {
                if depth >= UNROLL {
                    run!(turn!($step), UNROLL, depth / UNROLL, left, panel, sums);
                }
                if depth % UNROLL > 0 {
                    run!($step!(0), 1, depth % UNROLL, left, panel, sums);
                }
                let _ends = (left, panel);
                for (row, sums) in sums.into_iter().enumerate() {
                    store_row(sums, to.add(row * stride), add);
                }
            }
        }
    };
}

kernel!(
    sum_4, 4, step_4,
    [s00 s01 s02 s03] [s10 s11 s12 s13] [s20 s21 s22 s23] [s30 s31 s32 s33]
);
kernel!(
    sum_6, 6, step_6,
    [s00 s01 s02 s03] [s10 s11 s12 s13] [s20 s21 s22 s23] [s30 s31 s32 s33] [s40 s41 s42 s43]
    [s50 s51 s52 s53],
    back
);
