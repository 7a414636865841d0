//! Sums of squares, and AdamW in two halves: the candidate weights, and the moments.

use std::ops::Range;

use super::backend::CpuBackend;
use super::lanes::{LANES, Lanes, dispatch};
use crate::backend::{AdamWNumbers, SQUARE_SUM_CHUNK, SquareSum};

/// Elements one task updates.
const UPDATE_CHUNK: usize = 1 << 16;
/// Chunks summed side by side, so that eight chains of additions hide each other's latency.
const CHAINS: usize = 8;

pub(super) fn sum_squares(cpu: &CpuBackend, x: &[f32]) -> SquareSum {
    let mut sums = vec![0.0; x.len().div_ceil(SQUARE_SUM_CHUNK)];
    let groups = x.chunks(CHAINS * SQUARE_SUM_CHUNK).zip(sums.chunks_mut(CHAINS));
    cpu.threads().for_each(groups.collect(), |(group, sums)| {
        if group.len() == CHAINS * SQUARE_SUM_CHUNK {
            sums.copy_from_slice(&sum_side_by_side(group));
        } else {
            for (chunk, sum) in group.chunks(SQUARE_SUM_CHUNK).zip(sums) {
                *sum = chunk.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x));
            }
        }
    });
    let sum = sums.iter().fold(0.0, |total, sum| total + sum);
    let is_finite = sum.is_finite();
    let nonfinite = if is_finite { 0 } else { x.iter().filter(|x| !x.is_finite()).count() };
    SquareSum { sum, nonfinite: nonfinite as u64 }
}

/// Each chunk's sum is one chain in index order; the chains advance together.
fn sum_side_by_side(group: &[f32]) -> [f64; CHAINS] {
    let chunks: [&[f32]; CHAINS] =
        std::array::from_fn(|chain| &group[chain * SQUARE_SUM_CHUNK..][..SQUARE_SUM_CHUNK]);
    let mut sums = [0.0f64; CHAINS];
    for i in 0..SQUARE_SUM_CHUNK {
        for (sum, chunk) in sums.iter_mut().zip(chunks) {
            let x = f64::from(chunk[i]);
            *sum += x * x;
        }
    }
    sums
}

/// The state a candidate is computed from, over the elements meant.
#[derive(Clone, Copy)]
pub(super) struct State<'a> {
    pub(super) w: &'a [f32],
    pub(super) m: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) g: &'a [f32],
}

impl State<'_> {
    fn part(&self, range: Range<usize>) -> Self {
        let Self { w, m, v, g } = *self;
        Self { w: &w[range.clone()], m: &m[range.clone()], v: &v[range.clone()], g: &g[range] }
    }
}

pub(super) fn candidate(
    cpu: &CpuBackend,
    state: State<'_>,
    numbers: AdamWNumbers,
    candidate: &mut [f32],
) {
    let pieces = candidate.chunks_mut(UPDATE_CHUNK).enumerate().map(|(piece, candidate)| {
        let start = piece * UPDATE_CHUNK;
        (state.part(start..start + candidate.len()), candidate)
    });
    cpu.threads().for_each(pieces.collect(), |(state, candidate)| {
        candidate_chunk(cpu.instruction_set(), state, numbers, candidate);
    });
}

dispatch!(fn candidate_chunk(
    state: State<'_>, numbers: AdamWNumbers, candidate: &mut [f32],
) = candidate_lanes);

/// The moments of sixteen elements after the step.
#[inline(always)]
fn moments<L: Lanes>(g: L, m: L, v: L, numbers: &AdamWNumbers) -> (L, L) {
    let g = g.mul(L::splat(numbers.clip));
    let m = m.mul(L::splat(numbers.beta1)).add(g.mul(L::splat(numbers.beta1_rest)));
    let v = v.mul(L::splat(numbers.beta2)).add(L::splat(numbers.beta2_rest).mul(g).mul(g));
    (m, v)
}

#[inline(always)]
fn candidate_lanes<L: Lanes>(state: State<'_>, numbers: AdamWNumbers, candidate: &mut [f32]) {
    let State { w, m, v, g } = state;
    for at in (0..candidate.len()).step_by(LANES) {
        let (old_m, old_v) = (L::load_at(m, at, 0.0), L::load_at(v, at, 0.0));
        let (m, v) = moments(L::load_at(g, at, 0.0), old_m, old_v, &numbers);
        let denominator =
            v.sqrt().div(L::splat(numbers.correction2)).add(L::splat(numbers.epsilon));
        let decayed = L::load_at(w, at, 0.0).mul(L::splat(numbers.decay));
        decayed.add(L::splat(numbers.step).mul(m).div(denominator)).store_at(candidate, at);
    }
}

pub(super) fn commit(
    cpu: &CpuBackend,
    g: &[f32],
    numbers: AdamWNumbers,
    m: &mut [f32],
    v: &mut [f32],
) {
    let pieces =
        g.chunks(UPDATE_CHUNK).zip(m.chunks_mut(UPDATE_CHUNK)).zip(v.chunks_mut(UPDATE_CHUNK));
    cpu.threads().for_each(pieces.collect(), |((g, m), v)| {
        commit_chunk(cpu.instruction_set(), g, numbers, m, v);
    });
}

dispatch!(fn commit_chunk(
    g: &[f32], numbers: AdamWNumbers, m: &mut [f32], v: &mut [f32],
) = commit_lanes);

#[inline(always)]
fn commit_lanes<L: Lanes>(g: &[f32], numbers: AdamWNumbers, m: &mut [f32], v: &mut [f32]) {
    for at in (0..g.len()).step_by(LANES) {
        let (old_m, old_v) = (L::load_at(m, at, 0.0), L::load_at(v, at, 0.0));
        let (new_m, new_v) = moments(L::load_at(g, at, 0.0), old_m, old_v, &numbers);
        new_m.store_at(m, at);
        new_v.store_at(v, at);
    }
}
