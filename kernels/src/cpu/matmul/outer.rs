//! The weights' gradient of a linear layer: the sum over rows of outer products.

use std::ops::Range;

use super::super::instruction_set::InstructionSet;
use super::super::lanes::{LANES, Lanes, dispatch};
use super::packed::{PanelSource, STRIP_WORDS, load_or_zero, pack_as_is};
use super::scratch::{MatmulScratch, STRIPS_PACKED, with_scratch};
use super::tile::{Panels, PrefetchRange, PrefetchRanges, ProductStrip, STRIP, multiply_strip};
use super::{BLOCK_COLUMNS, chain_factors};
use crate::backend::Accumulate;
use crate::cpu::threads::Threads;
use crate::precision::Precision;

/// The operands: over `rows`, the sum of `left[row][i] * right[row][j]`.
#[derive(Clone, Copy)]
pub(crate) struct OuterProduct<'a> {
    pub(crate) rows: usize,
    /// The left operand, `rows` by `left_width`.
    pub(crate) left: &'a [f32],
    pub(crate) left_width: usize,
    /// The right operand, `rows` by `right_width`.
    pub(crate) right: &'a [f32],
    pub(crate) right_width: usize,
    /// What both operands' numbers become.
    pub(crate) precision: Precision,
    pub(crate) accumulate: Accumulate,
}

/// A part of the result that one task computes.
struct ResultPart<'a> {
    /// Rows of the result, which are columns of the left operand.
    rows: Range<usize>,
    /// Those rows of the result, whole.
    result: &'a mut [f32],
    /// The same entries of the column sums, if these are computed too.
    sums: Option<&'a mut [f32]>,
}

/// Writes or adds the outer products to `result` (`left_width` by `right_width`), and the column
/// sums of the left operand to `sums`, each sum in blocks of a chain's rows like a product with
/// ones, and of its floats as they are.
pub(crate) fn outer_product(
    set: InstructionSet,
    threads: &Threads,
    operands: OuterProduct<'_>,
    result: &mut [f32],
    mut sums: Option<&mut [f32]>,
) {
    assert_eq!(operands.left.len(), operands.rows * operands.left_width);
    assert_eq!(operands.right.len(), operands.rows * operands.right_width);
    assert_eq!(result.len(), operands.left_width * operands.right_width);
    let rows_per_part = rows_per_part(threads, operands.left_width);
    let mut parts = Vec::new();
    let results = result.chunks_mut(rows_per_part * operands.right_width);
    for (index, result) in results.enumerate() {
        let first = index * rows_per_part;
        let rows = first..operands.left_width.min(first + rows_per_part);
        let sums = sums.take().map(|rest| {
            let (here, after) = rest.split_at_mut(rows.len());
            sums = Some(after);
            here
        });
        parts.push(ResultPart { rows, result, sums });
    }
    threads.for_each(parts, |part| {
        with_scratch(|scratch| OuterProductTask { set, operands, part }.run(scratch));
    });
}

/// With one thread, everything at once. With several, a few parts a thread, so that a thread that
/// is held up leaves its share to the others; each part packs the right operand again, so parts
/// stay large enough that this costs a few per cent at most.
fn rows_per_part(threads: &Threads, rows: usize) -> usize {
    const PARTS_PER_THREAD: usize = 3;
    const ROWS_MIN: usize = 112;
    if threads.count() == 1 {
        return rows.max(1);
    }
    let even = rows.div_ceil(threads.count() * PARTS_PER_THREAD);
    even.max(ROWS_MIN).next_multiple_of(GROUP)
}

/// Rows of the result whose strips are packed together.
const GROUP: usize = STRIPS_PACKED * STRIP;

struct OuterProductTask<'a> {
    set: InstructionSet,
    operands: OuterProduct<'a>,
    part: ResultPart<'a>,
}

/// A block of the right operand: some of its rows and columns.
struct RightBlock {
    rows: Range<usize>,
    columns: Range<usize>,
    /// Whether the result already holds something to add to.
    add: bool,
}

impl OuterProductTask<'_> {
    fn run(mut self, scratch: &mut MatmulScratch) {
        let OuterProduct { rows, right, right_width, precision, accumulate, .. } = self.operands;
        let chain = chain_factors(precision);
        for column in (0..right_width).step_by(BLOCK_COLUMNS) {
            for row in (0..rows).step_by(chain) {
                let block = RightBlock {
                    rows: row..rows.min(row + chain),
                    columns: column..right_width.min(column + BLOCK_COLUMNS),
                    add: row > 0 || accumulate == Accumulate::Add,
                };
                let source = PanelSource {
                    floats: &right[row * right_width..],
                    stride: right_width,
                    columns: block.columns.clone(),
                    rows: block.rows.len(),
                    precision,
                };
                pack_as_is(self.set, source, scratch.block.as_mut_slice());
                self.multiply(scratch, &block);
            }
        }
    }

    /// One block of the right operand, already packed, by all strips of the part.
    fn multiply(&mut self, scratch: &mut MatmulScratch, block: &RightBlock) {
        let rows = self.part.rows.len();
        for first in (0..rows).step_by(GROUP) {
            let group = first..rows.min(first + GROUP);
            let mut chains = [0.0; GROUP];
            let strips = scratch.strips.as_mut_slice();
            pack_columns(self.set, self.group_source(block, group.clone()), strips, &mut chains);
            if block.columns.start == 0 {
                self.add_sums(group.clone(), block.add, &chains);
            }
            let strips = strips.chunks_exact(STRIP_WORDS).enumerate();
            for (start, (index, strip)) in group.clone().step_by(STRIP).zip(strips) {
                let next = self.prefetch_range(block, group.end, index);
                let prefetch = PrefetchRanges { first: next, second: PrefetchRange::NOTHING };
                let width = self.operands.right_width;
                let to = ProductStrip {
                    floats: &mut self.part.result[start * width + block.columns.start..],
                    stride: width,
                    rows: STRIP.min(group.end - start),
                    columns: block.columns.len(),
                    add: block.add,
                };
                let precision = self.operands.precision;
                let depth = precision.words(block.rows.len());
                let words = scratch.block.as_slice();
                let panels = Panels { words, rows: depth, start: 0, precision };
                multiply_strip(self.set, depth, strip, panels, prefetch, to);
            }
        }
    }

    fn group_source(&self, block: &RightBlock, group: Range<usize>) -> ColumnSource<'_> {
        ColumnSource {
            floats: &self.operands.left[block.rows.start * self.operands.left_width..],
            stride: self.operands.left_width,
            first: self.part.rows.start + group.start,
            width: group.len(),
            depth: block.rows.len(),
            precision: self.operands.precision,
        }
    }

    /// The share of the next group's operand that is fetched while strip `index` is worked on.
    fn prefetch_range(&self, block: &RightBlock, group_end: usize, index: usize) -> PrefetchRange {
        let share = block.rows.len().div_ceil(STRIPS_PACKED);
        let row = block.rows.start + index * share;
        let stride = self.operands.left_width;
        let start = row * stride + self.part.rows.start + group_end;
        let width = GROUP.min(self.part.rows.len() - group_end);
        PrefetchRange::new(self.operands.left, start, stride, width, share)
    }

    fn add_sums(&mut self, group: Range<usize>, add: bool, chains: &[f32]) {
        let Some(sums) = self.part.sums.as_deref_mut() else { return };
        for (to, sum) in sums[group].iter_mut().zip(chains) {
            *to = if add { *to + sum } else { *sum };
        }
    }
}

/// Columns of the left operand that become strips.
#[derive(Clone, Copy)]
struct ColumnSource<'a> {
    /// From the block's first row on.
    floats: &'a [f32],
    /// Floats from one row to the next.
    stride: usize,
    /// The first column of the strips.
    first: usize,
    /// Columns, at most [`GROUP`].
    width: usize,
    /// Rows of the block, which are the factors of a chain.
    depth: usize,
    precision: Precision,
}

dispatch!(fn pack_columns(
    source: ColumnSource<'_>, strips: &mut [f32], chains: &mut [f32; GROUP],
) = pack_columns_lanes);

/// Packs strips, and sums each of their columns as one chain. Where the group ends, what is
/// missing of a strip is zero.
#[inline(always)]
fn pack_columns_lanes<L: Lanes>(
    source: ColumnSource<'_>,
    strips: &mut [f32],
    chains: &mut [f32; GROUP],
) {
    let ColumnSource { floats, stride, first, width, depth, precision } = source;
    let mut sums = [L::splat(0.0); GROUP / STRIP];
    for word in 0..precision.words(depth) {
        let k = word * precision.factors_per_word();
        let row = &floats[k * stride + first..][..width];
        let second = if k + 1 < depth { &floats[(k + 1) * stride + first..][..width] } else { &[] };
        let strips = strips.chunks_exact_mut(STRIP_WORDS).zip(&mut sums);
        for (at, (strip, sum)) in (0..width).step_by(STRIP).zip(strips) {
            let mut factors = L::load_at(row, at, 0.0);
            *sum = sum.add(factors);
            if precision == Precision::Bf16 {
                let second = load_or_zero::<L>(second, at);
                *sum = sum.add(second);
                factors = factors.bf16_pairs(second);
            }
            factors.write_to(&mut strip[word * STRIP..]);
        }
    }
    for (sum, chain) in sums.into_iter().zip(chains.chunks_exact_mut(LANES)) {
        sum.write_to(chain);
    }
}
