//! Sums of squares, and AdamW in two halves: the candidate weights, and the moments.

use std::borrow::Cow;
use std::ops::Range;

use super::backend::CpuBackend;
use super::lanes::{LANES, Lanes, dispatch};
use super::matmul::{MatrixPair, PairWriter};
use crate::backend::{AdamWCoefficients, SQUARE_SUM_CHUNK, SquareSum};

/// Elements one task updates.
const UPDATE_CHUNK: usize = 1 << 16;
/// Chunks summed side by side, so that eight chains of additions hide each other's latency.
const CHAINS: usize = 8;

/// The sum of squares of one tensor.
pub(super) fn sum_squares(cpu: &CpuBackend, x: &[f32]) -> SquareSum {
    sum_squares_of_each(cpu, &[x]).pop().expect("one tensor, one sum")
}

/// The sum of squares of each tensor: chunks in index order, one chain of additions each, and the
/// chunks of a tensor in order. Which chunks are summed side by side changes nothing, so those of
/// all tensors are.
pub(super) fn sum_squares_of_each(cpu: &CpuBackend, tensors: &[&[f32]]) -> Vec<SquareSum> {
    let mut chunks: Vec<(usize, &[f32])> = Vec::new();
    for tensor in tensors {
        chunks.extend(tensor.chunks(SQUARE_SUM_CHUNK).zip(chunks.len()..).map(|(c, i)| (i, c)));
    }
    let mut sums = vec![0.0; chunks.len()];
    chunks.sort_by_key(|(_, chunk)| std::cmp::Reverse(chunk.len()));
    let mut grouped = vec![[0.0; CHAINS]; chunks.len().div_ceil(CHAINS)];
    let tasks = chunks.chunks(CHAINS).zip(&mut grouped);
    cpu.threads().for_each(tasks.collect(), |(group, sums)| {
        let mut chains: [&[f32]; CHAINS] = [&[]; CHAINS];
        for (chain, (_, chunk)) in chains.iter_mut().zip(group) {
            *chain = chunk;
        }
        *sums = sum_side_by_side(cpu.instruction_set(), chains);
    });
    for ((index, _), sum) in chunks.iter().zip(grouped.as_flattened()) {
        sums[*index] = *sum;
    }
    let mut sums = sums.into_iter();
    let sum_of = |tensor: &&[f32]| {
        let count = tensor.len().div_ceil(SQUARE_SUM_CHUNK);
        let sum = sums.by_ref().take(count).fold(0.0, |total, sum| total + sum);
        let nonfinite =
            if f64::is_finite(sum) { 0 } else { tensor.iter().filter(|x| !x.is_finite()).count() };
        SquareSum { sum, nonfinite: nonfinite as u64 }
    };
    tensors.iter().map(sum_of).collect()
}

/// The chains advance together, the longest first, sixteen elements of each at a time. A product of
/// floats is exact in f64, so fusing it into the sum changes nothing, and neither does a zero in
/// place of a chain that is at its end.
#[inline(always)]
fn side_by_side_lanes<L: Lanes>(chains: [&[f32]; CHAINS]) -> [f64; CHAINS] {
    let mut sums = [0.0f64; CHAINS];
    let mut at = 0;
    for count in (1..=CHAINS).rev() {
        let shortest = chains[count - 1];
        let end = shortest.len() / LANES * LANES;
        while at < end {
            let mut square = [L::splat(0.0); LANES];
            for (lanes, chain) in square.iter_mut().zip(&chains[..count]) {
                *lanes = L::from_slice(&chain[at..]);
            }
            for lanes in L::transpose(square) {
                lanes.add_squares(&mut sums);
            }
            at += LANES;
        }
        for x in shortest.get(at..).unwrap_or_default() {
            sums[count - 1] += f64::from(*x) * f64::from(*x);
        }
    }
    sums
}

dispatch!(fn sum_side_by_side(chains: [&[f32]; CHAINS]) -> [f64; CHAINS] = side_by_side_lanes);

/// The state a candidate is computed from, over the elements concerned.
#[derive(Clone, Copy)]
pub(super) struct CandidateState<'a> {
    pub(super) w: &'a [f32],
    pub(super) m: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) g: &'a [f32],
}

impl CandidateState<'_> {
    fn part(&self, range: Range<usize>) -> Self {
        let Self { w, m, v, g } = *self;
        Self { w: &w[range.clone()], m: &m[range.clone()], v: &v[range.clone()], g: &g[range] }
    }
}

/// Elements that one task computes, and the piece of a matrix they are.
struct OptimizerPiece<'a> {
    range: Range<usize>,
    matrix: Option<(&'a PairWriter<'a>, Range<usize>)>,
}

impl OptimizerPiece<'_> {
    /// Packs the piece's weights for products, while they are in the cache.
    fn pack(self, cpu: &CpuBackend, weights: &[f32]) {
        if let Some((writer, rows)) = self.matrix {
            // SAFETY: each piece of a matrix is in the list once.
            unsafe { writer.write(cpu.instruction_set(), rows, weights) };
        }
    }
}

/// `len` elements, piece by piece in order.
fn pieces<'a>(
    len: usize,
    matrices: &'a [(Range<usize>, PairWriter<'a>)],
) -> Vec<OptimizerPiece<'a>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut push = |end: usize, matrix| {
        pieces.push(OptimizerPiece { range: start..end, matrix });
        start = end;
    };
    let mut done = 0;
    for (range, writer) in matrices {
        chunks(done..range.start).for_each(|end| push(end, None));
        for rows in writer.pieces() {
            push(range.start + rows.end * writer.inputs(), Some((writer, rows)));
        }
        done = range.end;
    }
    chunks(done..len).for_each(|end| push(end, None));
    pieces
}

/// Splits off the front of `rest` that `piece` covers.
fn front<'a>(rest: &mut &'a mut [f32], piece: &OptimizerPiece<'_>) -> &'a mut [f32] {
    rest.split_off_mut(..piece.range.len()).expect("pieces make up the whole")
}

pub(super) fn candidate(
    cpu: &CpuBackend,
    state: CandidateState<'_>,
    numbers: AdamWCoefficients,
    candidate: &mut [f32],
    matrices: &[(Range<usize>, PairWriter<'_>)],
) {
    let mut rest = candidate;
    let tasks = pieces(state.w.len(), matrices).into_iter().map(|piece| {
        let candidate = front(&mut rest, &piece);
        (piece, candidate)
    });
    cpu.threads().for_each(tasks.collect(), |(piece, candidate)| {
        let state = state.part(piece.range.clone());
        candidate_chunk(cpu.instruction_set(), state, numbers, candidate);
        piece.pack(cpu, candidate);
    });
}

/// Weights and moments, in this order, after the step.
pub(super) fn in_place(
    cpu: &CpuBackend,
    g: &[f32],
    numbers: AdamWCoefficients,
    state: [&mut [f32]; 3],
    matrices: &[(Range<usize>, PairWriter<'_>)],
) {
    let mut rest = state;
    let tasks = pieces(g.len(), matrices).into_iter().map(|piece| {
        let state = rest.each_mut().map(|rest| front(rest, &piece));
        (piece, state)
    });
    cpu.threads().for_each(tasks.collect(), |(piece, mut state)| {
        let [w, m, v] = &mut state;
        let g = &g[piece.range.clone()];
        in_place_chunk(cpu.instruction_set(), g, numbers, w, m, v);
        piece.pack(cpu, w);
    });
}

/// The ends of chunks that make up `range`.
fn chunks(range: Range<usize>) -> impl Iterator<Item = usize> {
    let end = range.end;
    range.step_by(UPDATE_CHUNK).map(move |start| end.min(start + UPDATE_CHUNK))
}

/// Packs a matrix for the products that read it.
pub(super) fn load_matrix(cpu: &CpuBackend, floats: &[f32], matrix: &mut MatrixPair) {
    let inputs = matrix.shape().inputs;
    assert_eq!(floats.len(), matrix.shape().outputs * inputs);
    load_pieces(cpu, matrix, |rows| Cow::Borrowed(&floats[rows.start * inputs..rows.end * inputs]));
}

/// Packs a matrix of the rows that `piece` yields, each once.
pub(super) fn load_pieces<'a>(
    cpu: &CpuBackend,
    matrix: &mut MatrixPair,
    piece: impl Fn(&Range<usize>) -> Cow<'a, [f32]> + Sync,
) {
    let writer = matrix.writer();
    cpu.threads().for_each(writer.pieces().collect(), |rows| {
        let floats = piece(&rows);
        // SAFETY: each piece is in the list once.
        unsafe { writer.write(cpu.instruction_set(), rows, &floats) };
    });
}

dispatch!(fn candidate_chunk(
    state: CandidateState<'_>, numbers: AdamWCoefficients, candidate: &mut [f32],
) = candidate_lanes);

/// The moments of sixteen elements after the step.
#[inline(always)]
fn moments<L: Lanes>(g: L, m: L, v: L, numbers: &AdamWCoefficients) -> (L, L) {
    let g = g.mul(L::splat(numbers.clip));
    let m = m.mul(L::splat(numbers.beta1)).add(g.mul(L::splat(numbers.beta1_rest)));
    let v = v.mul(L::splat(numbers.beta2)).add(L::splat(numbers.beta2_rest).mul(g).mul(g));
    (m, v)
}

/// Sixteen weights after the step, from its moments.
#[inline(always)]
fn stepped<L: Lanes>(w: L, (m, v): (L, L), numbers: &AdamWCoefficients) -> L {
    let denominator = v.sqrt().div(L::splat(numbers.correction2)).add(L::splat(numbers.epsilon));
    let decayed = w.mul(L::splat(numbers.decay));
    decayed.add(L::splat(numbers.step).mul(m).div(denominator))
}

#[inline(always)]
fn candidate_lanes<L: Lanes>(
    state: CandidateState<'_>,
    numbers: AdamWCoefficients,
    candidate: &mut [f32],
) {
    let CandidateState { w, m, v, g } = state;
    for at in (0..candidate.len()).step_by(LANES) {
        let old_m = L::load_at(m, at, 0.0);
        let old_v = L::load_at(v, at, 0.0);
        let moments = moments(L::load_at(g, at, 0.0), old_m, old_v, &numbers);
        stepped(L::load_at(w, at, 0.0), moments, &numbers).store_at(candidate, at);
    }
}

dispatch!(fn in_place_chunk(
    g: &[f32], numbers: AdamWCoefficients, w: &mut [f32], m: &mut [f32], v: &mut [f32],
) = in_place_lanes);

#[inline(always)]
fn in_place_lanes<L: Lanes>(
    g: &[f32],
    numbers: AdamWCoefficients,
    w: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    for at in (0..g.len()).step_by(LANES) {
        let old_m = L::load_at(m, at, 0.0);
        let old_v = L::load_at(v, at, 0.0);
        let moments = moments(L::load_at(g, at, 0.0), old_m, old_v, &numbers);
        stepped(L::load_at(w, at, 0.0), moments, &numbers).store_at(w, at);
        moments.0.store_at(m, at);
        moments.1.store_at(v, at);
    }
}

pub(super) fn commit(
    cpu: &CpuBackend,
    g: &[f32],
    numbers: AdamWCoefficients,
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
    g: &[f32], numbers: AdamWCoefficients, m: &mut [f32], v: &mut [f32],
) = commit_lanes);

#[inline(always)]
fn commit_lanes<L: Lanes>(g: &[f32], numbers: AdamWCoefficients, m: &mut [f32], v: &mut [f32]) {
    for at in (0..g.len()).step_by(LANES) {
        let old_m = L::load_at(m, at, 0.0);
        let old_v = L::load_at(v, at, 0.0);
        let (new_m, new_v) = moments(L::load_at(g, at, 0.0), old_m, old_v, &numbers);
        new_m.store_at(m, at);
        new_v.store_at(v, at);
    }
}
