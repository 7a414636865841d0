//! Products against their definition, bit for bit.

use super::{BLOCK_DEPTH, MatrixPair, OuterProduct, RowProduct, SumStorage};
use super::{multiply_rows, outer_product, with_scratch};
use crate::backend::{Accumulate, MatrixShape};
use crate::conformance::floats;
use crate::cpu::buffer::CpuArena;
use crate::cpu::instruction_set::InstructionSet;
use crate::cpu::threads::Threads;

/// The definition of an element, one factor at a time.
fn define(
    depth: usize,
    start: Option<f32>,
    left: impl Fn(usize) -> f32,
    right: impl Fn(usize) -> f32,
) -> f32 {
    let mut total = start;
    for block in (0..depth).step_by(BLOCK_DEPTH) {
        let end = depth.min(block + BLOCK_DEPTH);
        let chain = (block..end).fold(0.0f32, |sum, k| left(k).mul_add(right(k), sum));
        total = Some(total.map_or(chain, |sum| sum + chain));
    }
    total.unwrap_or(0.0)
}

/// Rows, columns, depth: around tiles of 6 and 8, strips and panels of 16, three panels, unrolled
/// fours and blocks of 384.
const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (6, 16, 5),
    (7, 15, 5),
    (8, 16, 31),
    (9, 17, 32),
    (15, 32, 383),
    (16, 48, 384),
    (12, 64, 34),
    (17, 49, 385),
    (31, 383, 40),
    (9, 385, 769),
    (2, 800, 3),
];

#[test]
fn rows_by_packed_matrix_is_the_definition() {
    for (rows, columns, depth) in SHAPES {
        let x = floats(rows * depth, 1);
        let w = floats(columns * depth, 2);
        let arena = CpuArena::new();
        let pack = |outputs, inputs| {
            let shape = MatrixShape { outputs, inputs };
            let mut pair = MatrixPair::zeroed(&arena, shape).expect("small");
            let writer = pair.writer();
            for piece in writer.pieces() {
                let floats = &w[piece.start * inputs..piece.end * inputs];
                // SAFETY: one piece after the other.
                unsafe { writer.write(InstructionSet::Portable, piece, floats) };
            }
            pair
        };
        let as_is = pack(depth, columns);
        let transposed = pack(columns, depth);
        let matrices = [(&as_is.backward, columns, 1), (&transposed.forward, 1, depth)];
        for (matrix, k_stride, j_stride) in matrices {
            for set in InstructionSet::available() {
                let mut y = vec![f32::NAN; rows * columns];
                with_scratch(|scratch| {
                    let strip = scratch.strips.as_mut_slice();
                    let storage = SumStorage::Result(&mut y);
                    let factors = RowProduct { set, row_count: rows, left: &x[..], matrix };
                    multiply_rows(factors, strip, storage, |_, _, _| {});
                });
                for (index, y) in y.iter().enumerate() {
                    let i = index / columns;
                    let j = index % columns;
                    let right = |k: usize| w[k * k_stride + j * j_stride];
                    let expected = define(depth, None, |k| x[i * depth + k], right);
                    assert_eq!(y.to_bits(), expected.to_bits(), "{set:?} at ({i}, {j})");
                }
            }
        }
    }
}

#[test]
fn outer_product_is_the_definition_and_continues_where_it_stopped() {
    for (left_width, right_width, rows) in SHAPES {
        let left = floats(rows * left_width, 1);
        let right = floats(rows * right_width, 2);
        for set in InstructionSet::available() {
            for thread_count in 1..=2 {
                let threads = Threads::new(thread_count).expect("two threads");
                let mut result = vec![f32::NAN; left_width * right_width];
                let mut sums = vec![f32::NAN; left_width];
                for accumulate in [Accumulate::Start, Accumulate::Add] {
                    let left = &left[..];
                    let right = &right[..];
                    let operands =
                        OuterProduct { rows, left, left_width, right, right_width, accumulate };
                    outer_product(set, &threads, operands, &mut result, Some(&mut sums));
                }
                let twice = |left: &dyn Fn(usize) -> f32, right: &dyn Fn(usize) -> f32| {
                    define(rows, Some(define(rows, None, left, right)), left, right)
                };
                for (index, found) in result.iter().enumerate() {
                    let i = index / right_width;
                    let j = index % right_width;
                    let factor = |k: usize| left[k * left_width + i];
                    let expected = twice(&factor, &|k| right[k * right_width + j]);
                    assert_eq!(found.to_bits(), expected.to_bits(), "{set:?} at ({i}, {j})");
                }
                for (i, found) in sums.iter().enumerate() {
                    let expected = twice(&|k| left[k * left_width + i], &|_| 1.0);
                    assert_eq!(found.to_bits(), expected.to_bits(), "{set:?} sum {i}");
                }
            }
        }
    }
}
