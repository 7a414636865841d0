//! Muon: momentum, Newton-Schulz iterations of matrix products, and the step.
//!
//! A product's order of additions is that of all products here, and the rest is element by element:
//! neither threads nor instructions change a bit. Working memory is five matrices at most, allocated as it is
//! needed.

use super::backend::CpuBackend;
use super::matmul::{OuterProduct, outer_product};
use super::optimizer::sum_squares;
use crate::backend::{
    Accumulate, MatrixShape, MuonCoefficients, MuonMatrix, MuonRange, NEWTON_SCHULZ,
    NEWTON_SCHULZ_EPSILON, NEWTON_SCHULZ_ITERATIONS,
};
use crate::precision::Precision;

/// Elements that one task computes.
const CHUNK: usize = 1 << 16;
/// Rows of a transposed matrix that are written side by side: a cache line of each row of the source.
const ROWS_TRANSPOSED: usize = 16;

/// The weights after the step, from the operands over the run's range.
pub(super) fn candidate(
    cpu: &CpuBackend,
    run: &MuonRange,
    [w, m, g]: [&[f32]; 3],
    candidate: &mut [f32],
) {
    let MuonRange { matrices, numbers, .. } = run;
    assert!([w, m, g].iter().all(|part| part.len() == candidate.len()));
    let mut start = 0;
    for MuonMatrix { shape, step } in matrices {
        let range = start..start + shape.outputs * shape.inputs;
        start = range.end;
        let [w, m, g] = [w, m, g].map(|part| &part[range.clone()]);
        let to = &mut candidate[range];
        nesterov(cpu, m, g, *numbers, to);
        orthogonalize(cpu, *shape, to);
        add_scaled(cpu, to, *step, numbers.decay, w);
    }
    assert_eq!(start, candidate.len(), "matrices lie one behind the other");
}

/// The momentum after the step, in place.
pub(super) fn commit(cpu: &CpuBackend, numbers: MuonCoefficients, g: &[f32], m: &mut [f32]) {
    assert_eq!(g.len(), m.len());
    cpu.threads().for_each(m.chunks_mut(CHUNK).zip(g.chunks(CHUNK)).collect(), |(m, g)| {
        for (m, g) in m.iter_mut().zip(g) {
            *m = averaged(*m, numbers.clip * g, numbers);
        }
    });
}

fn averaged(m: f32, clipped: f32, numbers: MuonCoefficients) -> f32 {
    m * numbers.momentum + clipped * numbers.momentum_rest
}

/// Nesterov's look ahead: the average of the new momentum and the gradient.
fn nesterov(cpu: &CpuBackend, m: &[f32], g: &[f32], numbers: MuonCoefficients, to: &mut [f32]) {
    let pieces = to.chunks_mut(CHUNK).zip(m.chunks(CHUNK)).zip(g.chunks(CHUNK));
    cpu.threads().for_each(pieces.collect(), |((to, m), g)| {
        for ((to, m), g) in to.iter_mut().zip(m).zip(g) {
            let clipped = numbers.clip * g;
            *to = averaged(averaged(*m, clipped, numbers), clipped, numbers);
        }
    });
}

/// Newton-Schulz iterations in place, as [`MuonMatrix`] defines them.
fn orthogonalize(cpu: &CpuBackend, shape: MatrixShape, floats: &mut [f32]) {
    let scale = (1.0 / (sum_squares(cpu, floats).sum.sqrt() + NEWTON_SCHULZ_EPSILON)) as f32;
    floats.iter_mut().for_each(|x| *x *= scale);
    let mut other = vec![0.0; floats.len()];
    let MatrixShape { outputs, inputs } = shape;
    if outputs > inputs {
        transpose(cpu, floats, shape, &mut other);
        iterate(cpu, [inputs, outputs], &mut other, floats);
        let wide = MatrixShape { outputs: inputs, inputs: outputs };
        transpose(cpu, &other, wide, floats);
    } else {
        iterate(cpu, [outputs, inputs], floats, &mut other);
    }
}

/// The iterations on `x`, which has no more rows than columns; `tall` has as many floats, for its
/// transpose.
fn iterate(cpu: &CpuBackend, [rows, columns]: [usize; 2], x: &mut [f32], tall: &mut [f32]) {
    let [a, b, c] = NEWTON_SCHULZ;
    let shape = MatrixShape { outputs: rows, inputs: columns };
    let mut gram = vec![0.0; rows * rows];
    let mut square = vec![0.0; rows * rows];
    let mut product = vec![0.0; x.len()];
    for _ in 0..NEWTON_SCHULZ_ITERATIONS {
        transpose(cpu, x, shape, tall);
        transposed_product(cpu, columns, [tall, tall], &mut gram);
        // Equal to its transpose to the bit: both have the same factors in the same order.
        transposed_product(cpu, rows, [&gram, &gram], &mut square);
        add_scaled(cpu, &mut gram, b, c, &square);
        transposed_product(cpu, rows, [&gram, x], &mut product);
        add_scaled(cpu, x, a, 1.0, &product);
    }
}

/// The transpose of the left factor by the right one, both of `rows` rows.
fn transposed_product(
    cpu: &CpuBackend,
    rows: usize,
    [left, right]: [&[f32]; 2],
    result: &mut [f32],
) {
    let operands = OuterProduct {
        rows,
        left,
        left_width: left.len() / rows,
        right,
        right_width: right.len() / rows,
        precision: Precision::F32,
        accumulate: Accumulate::Start,
    };
    outer_product(cpu.instruction_set(), cpu.threads(), operands, result, None);
}

/// `to = factor * to + of_other * other`.
fn add_scaled(cpu: &CpuBackend, to: &mut [f32], factor: f32, of_other: f32, other: &[f32]) {
    assert_eq!(to.len(), other.len());
    cpu.threads().for_each(
        to.chunks_mut(CHUNK).zip(other.chunks(CHUNK)).collect(),
        |(to, other)| {
            for (to, other) in to.iter_mut().zip(other) {
                *to = factor * *to + of_other * other;
            }
        },
    );
}

/// Writes the transpose of `from`, a matrix of this shape.
fn transpose(cpu: &CpuBackend, from: &[f32], shape: MatrixShape, to: &mut [f32]) {
    let MatrixShape { outputs, inputs } = shape;
    let strip = ROWS_TRANSPOSED * outputs;
    let strips_per_task = CHUNK.div_ceil(strip);
    let tasks = to.chunks_mut(strips_per_task * strip).enumerate().collect();
    cpu.threads().for_each(tasks, |(task, to)| {
        for (index, to) in to.chunks_mut(strip).enumerate() {
            let first = (task * strips_per_task + index) * ROWS_TRANSPOSED;
            let columns = first..inputs.min(first + ROWS_TRANSPOSED);
            for (row, from) in from.chunks_exact(inputs).enumerate() {
                for (column, x) in from[columns.clone()].iter().enumerate() {
                    to[column * outputs + row] = *x;
                }
            }
        }
    });
}
