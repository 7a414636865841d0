//! The sums of a state's fingerprint on processors.

use super::backend::CpuBackend;
use super::lanes::{LANES, Lanes, dispatch};
use crate::fingerprint::{added, at_place};

/// Places that one task adds up.
const TASK_PLACES: usize = 1 << 16;

/// Weights and both moments, which may end before the weights do.
pub(super) fn state_sums(cpu: &CpuBackend, [w, m, v]: [&[f32]; 3]) -> [u64; 2] {
    let starts = (0..w.len()).step_by(TASK_PLACES);
    let mut sums = vec![[0; 2]; starts.len()];
    cpu.threads().for_each(starts.zip(&mut sums).collect(), |(start, sums)| {
        let range = start..w.len().min(start + TASK_PLACES);
        let part = |part: &'_ [f32]| part.len().min(range.start)..part.len().min(range.end);
        let w = &w[range.clone()];
        let m = &m[part(m)];
        let v = &v[part(v)];
        let (with_moments, without) = w.split_at(m.len());
        let of_both = task_sums(cpu.instruction_set(), start as u64, with_moments, m, v);
        // A word of zero adds nothing.
        let behind = (start + m.len()) as u64;
        let of_weights = task_sums(cpu.instruction_set(), behind, without, &[], &[]);
        *sums = added(of_both, of_weights);
    });
    sums.into_iter().fold([0; 2], added)
}

dispatch!(fn task_sums(start: u64, w: &[f32], m: &[f32], v: &[f32]) -> [u64; 2] = task_lanes);

/// Sixteen places at once, each with sums of its own: the compiler has the lanes in vectors. Moments are as
/// many as weights, or none.
#[inline(always)]
fn task_lanes<L: Lanes>(start: u64, w: &[f32], m: &[f32], v: &[f32]) -> [u64; 2] {
    let mut first = [0u64; LANES];
    let mut second = [0u64; LANES];
    let whole = w.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let parts = [w, m, v].map(|part| match part {
            [] => [0; LANES],
            part => L::from_slice(&part[at..]).to_array().map(f32::to_bits),
        });
        for lane in 0..LANES {
            let words = [parts[0][lane], parts[1][lane], parts[2][lane]];
            let sums = at_place(start + (at + lane) as u64, words);
            first[lane] = first[lane].wrapping_add(sums[0]);
            second[lane] = second[lane].wrapping_add(sums[1]);
        }
    }
    let of_lanes = first.into_iter().zip(second).map(|(first, second)| [first, second]);
    let rest = (whole..w.len()).map(|at| {
        let words = [w, m, v].map(|part| part.get(at).map_or(0, |x| x.to_bits()));
        at_place(start + at as u64, words)
    });
    of_lanes.chain(rest).fold([0; 2], added)
}
