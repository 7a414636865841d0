//! Factors laid out in the order in which tiles read them.

use std::ops::Range;

use super::super::lanes::{LANES, Lanes, dispatch};
use super::tile::{Panels, STRIP, fetch_line};
use super::{BLOCK_DEPTH, chain_factors};
use crate::backend::AllocateError;
use crate::cpu::buffer::{CpuArena, CpuBuffer};
use crate::panels::{PANEL, packed_len, padded};
use crate::precision::Precision;

/// A right factor of `depth` rows and `columns` columns, in panels of [`PANEL`] columns.
///
/// Blocks of one chain's rows ([`chain_factors`]) follow each other; within a block, panels; within
/// a panel, words of rows: a row of floats, or two rows of bfloat16 numbers whose words lie where
/// floats would. Columns of the last panel beyond the last of the matrix are zero, as is the second
/// number of a word whose row is beyond the last.
pub(crate) struct PackedMatrix {
    depth: usize,
    columns: usize,
    precision: Precision,
    words: CpuBuffer,
}

impl PackedMatrix {
    pub(crate) fn zeroed(
        arena: &CpuArena,
        depth: usize,
        columns: usize,
        precision: Precision,
    ) -> Result<Self, AllocateError> {
        let words = arena.allocate(packed_len(depth, columns, precision))?;
        Ok(Self { depth, columns, precision, words })
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// What its factors are.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// The panels from column `column` on in the block that starts at row `depth_start`.
    pub(crate) fn panels(&self, depth_start: usize, column: usize) -> Panels<'_> {
        let precision = self.precision;
        let chain = chain_factors(precision);
        assert!(depth_start.is_multiple_of(chain) && column.is_multiple_of(PANEL));
        let rows = precision.words(chain.min(self.depth - depth_start));
        let columns = padded(self.columns);
        let block = &self.words.as_slice()[precision.words(depth_start) * columns..];
        Panels { words: &block[column * rows..columns * rows], rows, start: 0, precision }
    }

    /// The words, to be written by code that knows the layout.
    pub(super) fn words_mut(&mut self) -> &mut [f32] {
        self.words.as_mut_slice()
    }
}

/// The source of a run of panels.
pub(crate) struct PanelSource<'a> {
    /// A row-major matrix, or its transpose.
    pub(crate) floats: &'a [f32],
    /// Floats from one row of `floats` to the next.
    pub(crate) stride: usize,
    /// Columns of the panels, which are rows of a transposed source.
    pub(crate) columns: Range<usize>,
    /// Factors of each column of the panels, which are columns of a transposed source.
    pub(crate) rows: usize,
    /// What the factors become.
    pub(crate) precision: Precision,
}

dispatch!(
    /// Panels whose rows are pieces of the source's rows.
    pub(crate) fn pack_as_is(source: PanelSource<'_>, panels: &mut [f32]) = pack_as_is_lanes
);

/// Row by row, so that the source is read in the order in which it lies. Rows are too far apart for
/// a processor to fetch the next ones by itself.
#[inline(always)]
fn pack_as_is_lanes<L: Lanes>(source: PanelSource<'_>, panels: &mut [f32]) {
    const ROWS_AHEAD: usize = 4;
    let PanelSource { floats, stride, columns, rows, precision } = source;
    let words = precision.words(rows);
    for word in 0..words {
        let row = word * precision.factors_per_word();
        let from = &floats[row * stride..][columns.clone()];
        let second =
            if row + 1 < rows { &floats[(row + 1) * stride..][columns.clone()] } else { &[] };
        for first in (0..from.len()).step_by(PANEL) {
            let ahead = from.as_ptr().wrapping_add(ROWS_AHEAD * stride + first);
            fetch_line::<true>(ahead);
            let mut factors = L::load_at(from, first, 0.0);
            if precision == Precision::Bf16 {
                fetch_line::<true>(ahead.wrapping_add(stride));
                factors = factors.bf16_pairs(load_or_zero(second, first));
            }
            factors.write_to(&mut panels[first * words + word * PANEL..]);
        }
    }
}

/// Lanes from `floats[at..]`; those beyond the end are zero, even all of them.
#[inline(always)]
pub(super) fn load_or_zero<L: Lanes>(floats: &[f32], at: usize) -> L {
    if at < floats.len() { L::load_at(floats, at, 0.0) } else { L::splat(0.0) }
}

dispatch!(
    /// Panels whose columns are pieces of the source's rows.
    pub(crate) fn pack_transposed(source: PanelSource<'_>, panels: &mut [f32])
        = pack_transposed_lanes
);

#[inline(always)]
fn pack_transposed_lanes<L: Lanes>(source: PanelSource<'_>, panels: &mut [f32]) {
    let PanelSource { floats, stride, columns, rows, precision } = source;
    let words = precision.words(rows);
    for (first, panel) in columns.clone().step_by(PANEL).zip(panels.chunks_mut(words * PANEL)) {
        let here = first..columns.end.min(first + PANEL);
        transpose::<L>(floats, stride, here, rows, precision, panel);
    }
}

/// The first `factors` columns of up to sixteen rows become rows of sixteen words in `to`; what is
/// missing of them is zero.
#[inline(always)]
fn transpose<L: Lanes>(
    floats: &[f32],
    stride: usize,
    rows: Range<usize>,
    factors: usize,
    precision: Precision,
    to: &mut [f32],
) {
    let per_square = LANES * precision.factors_per_word();
    for (first, to) in (0..factors).step_by(per_square).zip(to.chunks_mut(LANES * LANES)) {
        let columns = first..factors.min(first + per_square);
        match precision {
            Precision::F32 => transpose_floats::<L>(floats, stride, rows.clone(), columns, to),
            Precision::Bf16 => transpose_pairs::<L>(floats, stride, rows.clone(), columns, to),
        }
    }
}

/// Rows of up to sixteen words, each of two columns.
#[inline(always)]
fn transpose_pairs<L: Lanes>(
    floats: &[f32],
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    to: &mut [f32],
) {
    assert_eq!(to.len(), Precision::Bf16.words(columns.len()) * LANES);
    let mut square = [0.0; LANES * LANES];
    for (words, row) in square.chunks_exact_mut(LANES).zip(rows) {
        let row = &floats[row * stride..][columns.clone()];
        L::load_at(row, 0, 0.0).bf16_adjacent(load_or_zero(row, LANES)).write_to(words);
    }
    if to.len() == square.len() {
        // SAFETY: two squares of sixteen by sixteen.
        unsafe { L::transpose_square(square.as_ptr(), LANES, to.as_mut_ptr(), LANES) };
        return;
    }
    for (word, to) in to.chunks_exact_mut(LANES).enumerate() {
        for (row, to) in to.iter_mut().enumerate() {
            *to = square[row * LANES + word];
        }
    }
}

/// Rows of up to sixteen floats.
#[inline(always)]
fn transpose_floats<L: Lanes>(
    floats: &[f32],
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    to: &mut [f32],
) {
    assert_eq!(to.len(), columns.len() * LANES);
    let first = rows.start * stride + columns.start;
    let end = (rows.end.max(1) - 1) * stride + columns.end;
    if rows.len() == LANES && columns.len() == LANES && end <= floats.len() {
        // SAFETY: both ends were checked.
        unsafe { L::transpose_square(floats.as_ptr().add(first), stride, to.as_mut_ptr(), LANES) };
        return;
    }
    let mut square = [L::splat(0.0); LANES];
    for (lanes, row) in square.iter_mut().zip(rows) {
        *lanes = L::load_at(&floats[row * stride..][columns.clone()], 0, 0.0);
    }
    for (lanes, to) in L::transpose(square).into_iter().zip(to.chunks_exact_mut(LANES)) {
        lanes.write_to(to);
    }
}

/// Rows of a left factor that become a strip.
#[derive(Clone, Copy)]
pub(crate) struct RowSource<'a> {
    /// From the first of the rows on, at the first factor.
    pub(crate) floats: &'a [f32],
    /// Floats from one row to the next.
    pub(crate) stride: usize,
    /// Rows, up to [`STRIP`].
    pub(crate) rows: usize,
    /// The number of factors in each row.
    pub(crate) depth: usize,
    /// What the factors become.
    pub(crate) precision: Precision,
}

/// Words that are allocated for a strip.
pub(crate) const STRIP_WORDS: usize = STRIP * BLOCK_DEPTH;

dispatch!(
    /// Packs rows into a strip; missing rows are zero.
    pub(crate) fn pack_rows(source: RowSource<'_>, strip: &mut [f32]) = pack_rows_lanes
);

#[inline(always)]
fn pack_rows_lanes<L: Lanes>(source: RowSource<'_>, strip: &mut [f32]) {
    let RowSource { floats, stride, rows, depth, precision } = source;
    let strip = &mut strip[..precision.words(depth) * STRIP];
    transpose::<L>(floats, stride, 0..rows, depth, precision, strip);
}
