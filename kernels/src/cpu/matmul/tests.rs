//! Products against their definition, bit for bit.

use super::super::bf16::{multiply_add_pair, pair};
use super::{MatrixPair, OuterProduct, PrefetchRange, RowProduct, SumStorage};
use super::{chain_factors, multiply_rows, outer_product, with_scratch};
use crate::backend::{Accumulate, MatrixShape};
use crate::conformance::floats;
use crate::cpu::buffer::CpuArena;
use crate::cpu::instruction_set::InstructionSet;
use crate::cpu::threads::Threads;
use crate::precision::Precision;

/// The definition of an element, one word of factors at a time.
fn define(
    precision: Precision,
    depth: usize,
    start: Option<f32>,
    left: impl Fn(usize) -> f32,
    right: impl Fn(usize) -> f32,
) -> f32 {
    let mut total = start;
    for block in (0..depth).step_by(chain_factors(precision)) {
        let end = depth.min(block + chain_factors(precision));
        let chain = (block..end).step_by(precision.factors_per_word()).fold(0.0f32, |sum, k| {
            let word = |factor: &dyn Fn(usize) -> f32| {
                pair(factor(k), if k + 1 < end { factor(k + 1) } else { 0.0 })
            };
            match precision {
                Precision::F32 => left(k).mul_add(right(k), sum),
                Precision::Bf16 => multiply_add_pair(word(&left), word(&right), sum),
            }
        });
        total = Some(total.map_or(chain, |sum| sum + chain));
    }
    total.unwrap_or(0.0)
}

/// Bit for bit; a NaN is one whatever its payload, which instructions choose.
fn assert_same(found: f32, expected: f32, place: &str) {
    let is_same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
    assert!(is_same, "{place}: found {found:e}, expected {expected:e}");
}

/// Rows, columns, depth: around tiles of 6 and 8, strips and panels of 16, three panels, unrolled
/// fours and blocks of 384, of 768 with bfloat16 numbers.
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
    for precision in Precision::ALL {
        for (rows, columns, depth) in SHAPES {
            check_rows(
                precision,
                (rows, columns, depth),
                &floats(rows * depth, 1),
                &floats(columns * depth, 2),
            );
        }
    }
}

/// Both products of a packed matrix, with every instruction set.
fn check_rows(
    precision: Precision,
    (rows, columns, depth): (usize, usize, usize),
    x: &[f32],
    w: &[f32],
) {
    let arena = CpuArena::new();
    let pack = |set, outputs, inputs| {
        let shape = MatrixShape { outputs, inputs };
        let mut pair = MatrixPair::zeroed(&arena, shape, precision).expect("small");
        let writer = pair.writer();
        for piece in writer.pieces() {
            let floats = &w[piece.start * inputs..piece.end * inputs];
            // SAFETY: one piece after the other.
            unsafe { writer.write(set, piece, floats) };
        }
        pair
    };
    for set in InstructionSet::available() {
        let as_is = pack(set, depth, columns);
        let transposed = pack(set, columns, depth);
        let matrices = [(&as_is.backward, columns, 1), (&transposed.forward, 1, depth)];
        for (matrix, k_stride, j_stride) in matrices {
            let mut y = vec![f32::NAN; rows * columns];
            with_scratch(|scratch| {
                let strip = scratch.strips.as_mut_slice();
                let storage = SumStorage::Result(&mut y);
                let factors = RowProduct {
                    set,
                    row_count: rows,
                    left: x,
                    matrix,
                    finish_reads: PrefetchRange::NOTHING,
                };
                multiply_rows(factors, strip, storage, |_, _, _| {});
            });
            for (index, y) in y.iter().enumerate() {
                let i = index / columns;
                let j = index % columns;
                let right = |k: usize| w[k * k_stride + j * j_stride];
                let expected = define(precision, depth, None, |k| x[i * depth + k], right);
                assert_same(*y, expected, &format!("{precision:?} {set:?} at ({i}, {j})"));
            }
        }
    }
}

/// Floats at the edges of the definition of bfloat16 products: subnormal ones, factors whose products
/// are, ties, infinities, and a NaN now and then.
fn edges(len: usize, seed: u64) -> Vec<f32> {
    let of = |x: f32| {
        let pick = ((x + 1.0) * 500.0) as u32;
        match pick % 50 {
            0..10 => f32::from_bits(x.to_bits() & 0x807f_ffff),
            10..20 => x * f32::from_bits(0x2000_0000 + ((pick % 7) << 23)),
            20..30 => f32::from_bits(x.to_bits() & 0xffff_0000 | 0x8000),
            30..35 => x * f32::MIN_POSITIVE * 4.0,
            35..40 => 0.0f32.copysign(x),
            40 if pick.is_multiple_of(3) => f32::INFINITY.copysign(x),
            41 if pick.is_multiple_of(4) => f32::from_bits(0x7f80_0001),
            _ => x,
        }
    };
    floats(len, seed).into_iter().map(of).collect()
}

#[test]
fn words_at_the_edge_of_floats_are_the_definition() {
    for seed in 0..40 {
        for depth in [1, 2, 3, 5, 8] {
            let shape = (33, 49, depth);
            check_rows(
                Precision::Bf16,
                shape,
                &edges(33 * depth, 2 * seed),
                &edges(49 * depth, 2 * seed + 1),
            );
        }
    }
}

/// Where one unit is 2^-150, the last digit below the least normal float: that float as a product, and
/// a half and five eighths of a unit taken from it. A half is rounded up again, five eighths are not.
#[test]
fn sums_about_the_least_normal_float_are_the_definition() {
    let factor = |x: f32| match ((x + 1.0) * 500.0) as u32 % 4 {
        0 => 2.0f32.powi(-63),
        1 => -2.0f32.powi(-75),
        2 => 2.0f32.powi(-76),
        _ => 0.625 * 2.0f32.powi(-75),
    };
    let factors = |len, seed| floats(len, seed).into_iter().map(factor).collect::<Vec<_>>();
    for depth in 1..=6 {
        let [x, w] = [(33, 1), (49, 2)].map(|(rows, seed)| factors(rows * depth, seed));
        check_rows(Precision::Bf16, (33, 49, depth), &x, &w);
    }
}

#[test]
fn outer_product_is_the_definition_and_continues_where_it_stopped() {
    for precision in Precision::ALL {
        for shape in SHAPES {
            for set in InstructionSet::available() {
                for thread_count in 1..=2 {
                    check_outer(precision, shape, set, thread_count);
                }
            }
        }
    }
}

fn check_outer(
    precision: Precision,
    (left_width, right_width, rows): (usize, usize, usize),
    set: InstructionSet,
    thread_count: usize,
) {
    let left = &floats(rows * left_width, 1)[..];
    let right = &floats(rows * right_width, 2)[..];
    let threads = Threads::new(thread_count).expect("two threads");
    let mut result = vec![f32::NAN; left_width * right_width];
    let mut sums = vec![f32::NAN; left_width];
    for accumulate in [Accumulate::Start, Accumulate::Add] {
        let operands =
            OuterProduct { rows, left, left_width, right, right_width, precision, accumulate };
        outer_product(set, &threads, operands, &mut result, Some(&mut sums));
    }
    let twice = |left: &dyn Fn(usize) -> f32, right: &dyn Fn(usize) -> f32| {
        define(precision, rows, Some(define(precision, rows, None, left, right)), left, right)
    };
    for (index, found) in result.iter().enumerate() {
        let i = index / right_width;
        let j = index % right_width;
        let factor = |k: usize| left[k * left_width + i];
        let expected = twice(&factor, &|k| right[k * right_width + j]);
        assert_same(*found, expected, &format!("{precision:?} {set:?} at ({i}, {j})"));
    }
    let chain = chain_factors(precision);
    for (i, found) in sums.iter().enumerate() {
        let sum = |rows: std::ops::Range<usize>| {
            rows.fold(0.0f32, |sum, k| sum + left[k * left_width + i])
        };
        let blocks = || (0..rows).step_by(chain).map(|row| sum(row..rows.min(row + chain)));
        let expected = blocks().chain(blocks()).reduce(|total, sum| total + sum).expect("rows");
        assert_same(*found, expected, &format!("{precision:?} {set:?} sum {i}"));
    }
}
