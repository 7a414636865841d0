//! The weights' gradient of a linear layer: the sum over rows of outer products.

use std::ops::Range;

use super::super::lanes::{InstructionSet, LANES, Lanes, dispatch};
use super::packed::{PanelSource, pack_as_is};
use super::scratch::{STRIP_FLOATS, STRIPS_PACKED, Scratch, with_scratch};
use super::tile::{Ahead, Left, Product, row_block_len, tile_rows};
use super::{BLOCK_COLUMNS, BLOCK_DEPTH};
use crate::backend::Accumulate;
use crate::cpu::threads::Threads;

/// The operands: over `rows`, the sum of `left[row][i] * right[row][j]`.
#[derive(Clone, Copy)]
pub(crate) struct OuterProduct<'a> {
    pub(crate) rows: usize,
    /// `rows` by `left_width`.
    pub(crate) left: &'a [f32],
    pub(crate) left_width: usize,
    /// `rows` by `right_width`.
    pub(crate) right: &'a [f32],
    pub(crate) right_width: usize,
    pub(crate) accumulate: Accumulate,
}

/// A part of the result that one task computes.
struct Part<'a> {
    /// Rows of the result, which are columns of the left operand.
    rows: Range<usize>,
    /// Those rows of the result, whole.
    result: &'a mut [f32],
    /// The same entries of the column sums, if asked for.
    sums: Option<&'a mut [f32]>,
}

/// Writes or adds the outer products to `result` (`left_width` by `right_width`), and the column
/// sums of the left operand to `sums`, each sum in blocks of [`BLOCK_DEPTH`] rows like a product
/// with ones.
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
    let rows_per_part = rows_per_part(set, threads, operands.left_width);
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
        parts.push(Part { rows, result, sums });
    }
    threads.for_each(parts, |part| {
        with_scratch(|scratch| Task { set, operands, part }.run(scratch));
    });
}

/// With one thread, everything at once. With several, a few parts a thread, so that a thread that
/// is held up leaves its share to the others; each part packs the right operand again, so parts
/// stay large enough that this costs a few per cent at most.
fn rows_per_part(set: InstructionSet, threads: &Threads, rows: usize) -> usize {
    const PARTS_PER_THREAD: usize = 3;
    const ROWS_MIN: usize = 112;
    if threads.count() == 1 {
        return rows.max(1);
    }
    let even = rows.div_ceil(threads.count() * PARTS_PER_THREAD);
    even.max(ROWS_MIN).next_multiple_of(row_block_len(set))
}

struct Task<'a> {
    set: InstructionSet,
    operands: OuterProduct<'a>,
    part: Part<'a>,
}

/// A block of the right operand: some of its rows and columns.
struct RightBlock {
    rows: Range<usize>,
    columns: Range<usize>,
    /// Whether the result already holds something to add to.
    add: bool,
}

impl Task<'_> {
    fn run(mut self, scratch: &mut Scratch) {
        let OuterProduct { rows, right, right_width, accumulate, .. } = self.operands;
        for column in (0..right_width).step_by(BLOCK_COLUMNS) {
            for row in (0..rows).step_by(BLOCK_DEPTH) {
                let block = RightBlock {
                    rows: row..rows.min(row + BLOCK_DEPTH),
                    columns: column..right_width.min(column + BLOCK_COLUMNS),
                    add: row > 0 || accumulate == Accumulate::Add,
                };
                let source = PanelSource {
                    floats: &right[row * right_width..],
                    stride: right_width,
                    columns: block.columns.clone(),
                    rows: block.rows.len(),
                };
                pack_as_is(self.set, source, scratch.block.as_mut_slice());
                self.multiply(scratch, &block);
            }
        }
    }

    /// One block of the right operand, already packed, by all strips of the part.
    fn multiply(&mut self, scratch: &mut Scratch, block: &RightBlock) {
        let strip_len = row_block_len(self.set);
        let group_len = STRIPS_PACKED * strip_len;
        let rows = self.part.rows.len();
        for first in (0..rows).step_by(group_len) {
            let group = first..rows.min(first + group_len);
            let source = self.strip_source(block, group.clone());
            let mut chains = [0.0; STRIPS_PACKED * LANES];
            let packed = scratch.columns.as_mut_slice();
            pack_strips(self.set, source, strip_len, packed, &mut chains);
            if block.columns.start == 0 {
                self.add_sums(group.clone(), block.add, &chains);
            }
            let strips = packed.chunks_exact(STRIP_FLOATS).enumerate();
            for (start, (index, packed)) in group.clone().step_by(strip_len).zip(strips) {
                let ahead = self.ahead(block, group.end, index, group_len);
                let width = self.operands.right_width;
                let to = Product {
                    floats: &mut self.part.result[start * width + block.columns.start..],
                    stride: width,
                    columns: block.columns.len(),
                    add: block.add,
                };
                let left = Left::Columns(packed, strip_len);
                let strip_rows = strip_len.min(group.end - start);
                let (depth, panels) = (block.rows.len(), scratch.block.as_slice());
                tile_rows(self.set, strip_rows, depth, left, panels, ahead, to);
            }
        }
    }

    fn strip_source(&self, block: &RightBlock, group: Range<usize>) -> StripSource<'_> {
        StripSource {
            floats: &self.operands.left[block.rows.start * self.operands.left_width..],
            stride: self.operands.left_width,
            first: self.part.rows.start + group.start,
            width: group.len(),
            depth: block.rows.len(),
        }
    }

    /// The share of the next group's operand that is fetched while strip `index` is worked on.
    fn ahead(&self, block: &RightBlock, group_end: usize, index: usize, group_len: usize) -> Ahead {
        let share = block.rows.len().div_ceil(STRIPS_PACKED);
        let row = block.rows.start + index * share;
        let stride = self.operands.left_width;
        let start = row * stride + self.part.rows.start + group_end;
        let width = group_len.min(self.part.rows.len() - group_end);
        Ahead::new(self.operands.left, start, stride, width, share)
    }

    fn add_sums(&mut self, group: Range<usize>, add: bool, chains: &[f32]) {
        let Some(sums) = self.part.sums.as_deref_mut() else { return };
        let strip_len = row_block_len(self.set);
        let chains = chains.chunks_exact(LANES).flat_map(|chain| &chain[..strip_len]);
        for (to, sum) in sums[group].iter_mut().zip(chains) {
            *to = if add { *to + sum } else { *sum };
        }
    }
}

/// Columns of the left operand that become strips.
#[derive(Clone, Copy)]
struct StripSource<'a> {
    /// From the block's first row on.
    floats: &'a [f32],
    /// Floats from one row to the next.
    stride: usize,
    /// The first column.
    first: usize,
    /// Columns, at most [`STRIPS_PACKED`] strips.
    width: usize,
    /// Rows.
    depth: usize,
}

dispatch!(fn pack_strips(
    source: StripSource<'_>, strip_len: usize, packed: &mut [f32], chains: &mut [f32],
) = pack_strips_lanes);

/// Packs strips column by column, and sums each column of them as one chain.
#[inline(always)]
fn pack_strips_lanes<L: Lanes>(
    source: StripSource<'_>,
    strip_len: usize,
    packed: &mut [f32],
    chains: &mut [f32],
) {
    let StripSource { floats, stride, first, width, depth } = source;
    assert!(packed.len() >= STRIPS_PACKED * STRIP_FLOATS && depth <= BLOCK_DEPTH);
    assert!(first + width <= stride && floats.len() >= (depth - 1) * stride + first + width);
    let mut sums = [L::splat(0.0); STRIPS_PACKED];
    // What a vector holds beyond its strip is overwritten by the next row's; the last rows, whose
    // vectors would reach beyond the source, and strips that are not full go the slow way.
    let is_full = width == STRIPS_PACKED * strip_len;
    let fast = match floats.len().checked_sub(first + width - strip_len + LANES) {
        Some(beyond_first) if is_full => depth.min(beyond_first / stride + 1),
        Some(_) | None => 0,
    };
    for k in 0..fast {
        for (strip, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the vector ends within the source, because row `k` is readable that far,
            // and within its strip's memory, which has room for sixteen floats a row.
            unsafe {
                let from = floats.as_ptr().add(k * stride + first + strip * strip_len);
                let lanes = L::load(from);
                *sum = sum.add(lanes);
                lanes.store(packed.as_mut_ptr().add(strip * STRIP_FLOATS + k * strip_len));
            }
        }
    }
    for k in fast..depth {
        let row = &floats[k * stride + first..][..width];
        let strips = row.chunks(strip_len).zip(packed.chunks_exact_mut(STRIP_FLOATS));
        for ((from, to), sum) in strips.zip(&mut sums) {
            let lanes = L::from_partial(from, 0.0);
            *sum = sum.add(lanes);
            lanes.write_partial(&mut to[k * strip_len..][..from.len()]);
        }
    }
    for (sum, chain) in sums.into_iter().zip(chains.chunks_exact_mut(LANES)) {
        sum.write_to(chain);
    }
}
