//! Low-rank adapters: added to a matrix, and the columns that their gradients are of.

use std::borrow::Cow;
use std::ops::Range;

use super::backend::CpuBackend;
use super::draw::HostThreads;
use super::instruction_set::InstructionSet;
use super::lanes::{LANES, Lanes, dispatch};
use super::matmul::MatrixPair;
use super::optimizer::load_pieces;
use super::threads::Threads;
use crate::backend::MatrixShape;

/// Rows of a matrix that one task adapts.
const TASK_ROWS: usize = 16;

/// The product `b * a` of thin matrices on the host, and its factor.
#[derive(Clone, Copy, Debug)]
pub struct LowRankProduct<'a> {
    /// `rank` rows.
    pub a: &'a [f32],
    /// `rank` columns.
    pub b: &'a [f32],
    /// How many.
    pub rank: usize,
    /// The factor of the product.
    pub scale: f32,
}

/// Adds some rows of the product to as many of a matrix.
#[inline(always)]
fn add_lanes<L: Lanes>(product: LowRankProduct<'_>, rows: Range<usize>, weights: &mut [f32]) {
    let LowRankProduct { a, b, rank, scale } = product;
    let inputs = a.len() / rank;
    for (row, weights) in rows.zip(weights.chunks_exact_mut(inputs)) {
        let b = &b[row * rank..][..rank];
        for at in (0..inputs).step_by(LANES) {
            let mut sum = L::splat(0.0);
            for (factor, a) in b.iter().zip(a.chunks_exact(inputs)) {
                sum = L::splat(*factor).mul_add(L::load_at(a, at, 0.0), sum);
            }
            let base = L::load_at(weights, at, 0.0);
            L::splat(scale).mul_add(sum, base).store_at(weights, at);
        }
    }
}

dispatch!(fn add_rows(
    product: LowRankProduct<'_>, rows: Range<usize>, weights: &mut [f32],
) = add_lanes);

fn add(threads: &Threads, set: InstructionSet, product: LowRankProduct<'_>, weights: &mut [f32]) {
    let LowRankProduct { a, b, rank, .. } = product;
    let inputs = a.len() / rank;
    assert_eq!(a.len(), rank * inputs);
    assert_eq!(weights.len() * rank, b.len() * inputs, "as many rows as the product has");
    let pieces = weights.chunks_mut(TASK_ROWS * inputs).enumerate();
    threads.for_each(pieces.collect(), |(piece, weights)| {
        let first = piece * TASK_ROWS;
        add_rows(set, product, first..first + weights.len() / inputs, weights);
    });
}

impl HostThreads {
    /// Adds a product to a matrix, to the bits of [`crate::AdapterArithmetic::load_adapted_matrix`].
    ///
    /// # Panics
    /// If the product is of another shape.
    pub fn add_low_rank(&self, product: LowRankProduct<'_>, weights: &mut [f32]) {
        add(self.threads(), self.instruction_set(), product, weights);
    }
}

/// Packs a matrix of `base` with these products added to its rows, each from the first of these rows on. No more than the rows
/// under way are in memory beside it.
pub(super) fn load_adapted(
    cpu: &CpuBackend,
    base: &[f32],
    products: &[(usize, LowRankProduct<'_>)],
    matrix: &mut MatrixPair,
) {
    let MatrixShape { outputs, inputs } = matrix.shape();
    assert_eq!(base.len(), outputs * inputs);
    load_pieces(cpu, matrix, |rows| {
        let mut weights = Cow::Borrowed(&base[rows.start * inputs..rows.end * inputs]);
        for (first, product) in products {
            let end = first + product.b.len() / product.rank;
            let start = rows.start.max(*first);
            let end = rows.end.min(end);
            if start < end {
                let to = (start - rows.start) * inputs..(end - rows.start) * inputs;
                let to = &mut weights.to_mut()[to];
                add_rows(cpu.instruction_set(), *product, start - first..end - first, to);
            }
        }
        weights
    });
}

pub(super) fn scale_columns(
    cpu: &CpuBackend,
    from: &[f32],
    width: usize,
    columns: Range<usize>,
    scale: f32,
    to: &mut [f32],
) {
    let rows = from.len() / width;
    assert_eq!(to.len(), rows * columns.len());
    let share = cpu.rows_per_task(rows);
    let pieces = from.chunks(share * width).zip(to.chunks_mut(share * columns.len()));
    cpu.threads().for_each(pieces.collect(), |(from, to)| {
        for (from, to) in from.chunks_exact(width).zip(to.chunks_exact_mut(columns.len())) {
            for (x, to) in from[columns.clone()].iter().zip(to) {
                *to = scale * x;
            }
        }
    });
}
