//! The weights' gradient of a linear layer: the sum over rows of outer products.

use std::ops::Range;

use super::super::lanes::InstructionSet;
use super::packed::pack_as_is;
use super::scratch::{STRIP_FLOATS, STRIPS_PACKED, Scratch, with_scratch};
use super::tile::{Left, Product, row_block_len, tile_rows};
use super::{BLOCK_COLUMNS, BLOCK_DEPTH, PANEL};
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
    sums: Option<&mut [f32]>,
) {
    assert_eq!(operands.left.len(), operands.rows * operands.left_width);
    assert_eq!(operands.right.len(), operands.rows * operands.right_width);
    assert_eq!(result.len(), operands.left_width * operands.right_width);
    let rows_per_part = rows_per_part(set, threads, operands.left_width);
    let mut sums = sums;
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
    threads.for_each(parts, |part| with_scratch(|scratch| run(set, scratch, operands, part)));
}

/// With one thread, everything at once. With several, four parts a thread, so that a thread that
/// is held up leaves its share to the others; each part packs the right operand again, so parts
/// stay large enough that this costs a few per cent at most.
fn rows_per_part(set: InstructionSet, threads: &Threads, rows: usize) -> usize {
    const PARTS_PER_THREAD: usize = 4;
    const ROWS_MIN: usize = 112;
    if threads.count() == 1 {
        return rows.max(1);
    }
    let even = rows.div_ceil(threads.count() * PARTS_PER_THREAD);
    even.max(ROWS_MIN).next_multiple_of(row_block_len(set))
}

fn run(set: InstructionSet, scratch: &mut Scratch, operands: OuterProduct<'_>, mut part: Part<'_>) {
    for column in (0..operands.right_width).step_by(BLOCK_COLUMNS) {
        let columns = column..operands.right_width.min(column + BLOCK_COLUMNS);
        for start in (0..operands.rows).step_by(BLOCK_DEPTH) {
            let depth = start..operands.rows.min(start + BLOCK_DEPTH);
            let add = start > 0 || operands.accumulate == Accumulate::Add;
            let right = &operands.right[start * operands.right_width..];
            let block = scratch.block.as_mut_slice();
            for (panel, to) in block.chunks_mut(depth.len() * PANEL).enumerate() {
                let first = column + panel * PANEL;
                if first >= columns.end {
                    break;
                }
                pack_as_is(right, operands.right_width, operands.right_width, first, to);
            }
            if column == 0
                && let Some(sums) = part.sums.as_deref_mut()
            {
                add_columns(operands, &depth, &part.rows, add, sums);
            }
            multiply(set, scratch, operands, &mut part, &columns, &depth, add);
        }
    }
}

/// One block of the right operand, already packed, by all strips of the part.
fn multiply(
    set: InstructionSet,
    scratch: &mut Scratch,
    operands: OuterProduct<'_>,
    part: &mut Part<'_>,
    columns: &Range<usize>,
    depth: &Range<usize>,
    add: bool,
) {
    let strip_len = row_block_len(set);
    let group_len = STRIPS_PACKED * strip_len;
    let width = operands.right_width;
    let (packed, block) = (scratch.columns.as_mut_slice(), scratch.block.as_slice());
    for group in (0..part.rows.len()).step_by(group_len) {
        let group_end = part.rows.len().min(group + group_len);
        for (k, row) in depth.clone().enumerate() {
            let from = &operands.left[row * operands.left_width + part.rows.start..];
            let pieces = from[group..group_end].chunks(strip_len);
            for (from, to) in pieces.zip(packed.chunks_exact_mut(STRIP_FLOATS)) {
                copy_short(from, &mut to[k * strip_len..]);
            }
        }
        let packed = packed.chunks_exact(STRIP_FLOATS);
        for (strip, packed) in (group..group_end).step_by(strip_len).zip(packed) {
            let rows = strip_len.min(group_end - strip);
            let to = Product {
                floats: &mut part.result[strip * width + columns.start..],
                stride: width,
                columns: columns.len(),
                add,
            };
            tile_rows(set, rows, depth.len(), Left::Columns(packed, strip_len), block, to);
        }
    }
}

/// Copies a strip's width; the lengths that occur are spelled out so that each is a few moves.
fn copy_short(from: &[f32], to: &mut [f32]) {
    match from.len() {
        14 => to[..14].copy_from_slice(&from[..14]),
        12 => to[..12].copy_from_slice(&from[..12]),
        len => to[..len].copy_from_slice(from),
    }
}

/// Column sums of the left operand over a block of rows.
fn add_columns(
    operands: OuterProduct<'_>,
    depth: &Range<usize>,
    columns: &Range<usize>,
    add: bool,
    sums: &mut [f32],
) {
    let mut chain = vec![0.0f32; columns.len()];
    for row in depth.clone() {
        let from = &operands.left[row * operands.left_width..][columns.clone()];
        for (sum, x) in chain.iter_mut().zip(from) {
            *sum += x;
        }
    }
    for (to, sum) in sums.iter_mut().zip(chain) {
        *to = if add { *to + sum } else { sum };
    }
}
