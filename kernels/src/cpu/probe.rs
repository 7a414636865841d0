//! The most a processor can do: multiply-adds on registers alone.
//!
//! Each lane of each chain has a value of its own. Where two were equal, a compiler would compute
//! one of them, and a set whose vectors lie in two registers would seem twice as fast as it is.

use std::hint::black_box;

use super::backend::CpuBackend;
use super::bf16::pair;
use super::instruction_set::InstructionSet;
use super::lanes::{LANES, Lanes, dispatch};
use crate::precision::Precision;

/// Chains side by side in 512-bit registers. Two units with a latency of four cycles need eight to
/// be kept busy.
const CHAINS_WIDE: usize = 12;
/// Chains in pairs of 256-bit registers, 12 of 16, or in fours of 128-bit ones, 24 of 32.
const CHAINS_NARROW: usize = 6;

/// Chains that keep the units busy and fit into registers.
const fn chain_count(set: InstructionSet) -> usize {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => CHAINS_WIDE,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => CHAINS_NARROW,
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => CHAINS_NARROW,
        InstructionSet::Portable => CHAINS_NARROW,
    }
}

pub(super) fn multiply_adds(cpu: &CpuBackend, rounds: usize) -> f64 {
    let count = cpu.threads().count();
    let set = cpu.instruction_set();
    let has_pairs = cpu.multiplies_pairs();
    cpu.threads().run(count, |_| {
        let mut values = black_box(starts());
        if has_pairs {
            run_pair_chains(rounds, black_box(pair(0.999, 0.001)), &mut values);
        } else {
            run_chains(set, rounds, black_box([0.999, 0.001]), &mut values);
        }
        black_box(values);
    });
    let factors = if has_pairs { Precision::Bf16.factors_per_word() } else { 1 };
    2.0 * (count * rounds * chain_count(set) * LANES * factors) as f64
}

/// The products of the word's factors with themselves, added `rounds` times in a row to all values.
#[cfg(target_arch = "x86_64")]
fn run_pair_chains(rounds: usize, word: f32, values: &mut [f32; CHAINS_WIDE * LANES]) {
    use std::arch::x86_64::{
        __m512bh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps,
    };
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn pair_chains(rounds: usize, word: f32, values: &mut [f32; CHAINS_WIDE * LANES]) {
        // SAFETY: a vector of halves has the bits of one of words.
        let word: __m512bh = unsafe { std::mem::transmute(_mm512_set1_ps(word)) };
        let mut chains = [_mm512_set1_ps(0.0); CHAINS_WIDE];
        for (chain, values) in chains.iter_mut().zip(values.chunks_exact(LANES)) {
            // SAFETY: the values are those of a vector.
            *chain = unsafe { _mm512_loadu_ps(values.as_ptr()) };
        }
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = _mm512_dpbf16_ps(*chain, word, word);
            }
        }
        for (chain, values) in chains.into_iter().zip(values.chunks_exact_mut(LANES)) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), chain) };
        }
    }
    assert!(InstructionSet::Avx512.has_bf16());
    // SAFETY: the processor has the instructions.
    unsafe { pair_chains(rounds, word, values) }
}

#[cfg(not(target_arch = "x86_64"))]
fn run_pair_chains(_: usize, _: f32, _: &mut [f32; CHAINS_WIDE * LANES]) {
    unreachable!("no instruction multiplies pairs");
}

/// A value for each lane of each chain.
fn starts() -> [f32; CHAINS_WIDE * LANES] {
    std::array::from_fn(|i| 1.0 + i as f32 / 256.0)
}

/// `value + left * right`, `rounds` times in a row, of all values of the set's chains: sums are what the
/// instructions of every processor can add to in place.
fn run_chains(
    set: InstructionSet,
    rounds: usize,
    factors: [f32; 2],
    values: &mut [f32; CHAINS_WIDE * LANES],
) {
    match chain_count(set) {
        CHAINS_WIDE => wide_chains(set, rounds, factors, values),
        CHAINS_NARROW => narrow_chains(set, rounds, factors, values),
        count => unreachable!("no loop has {count} chains"),
    }
}

dispatch!(fn wide_chains(rounds: usize, factors: [f32; 2], values: &mut [f32]) = wide_lanes);
dispatch!(
    fn narrow_chains(rounds: usize, factors: [f32; 2], values: &mut [f32]) = narrow_lanes
);

#[inline(always)]
fn wide_lanes<L: Lanes>(rounds: usize, factors: [f32; 2], values: &mut [f32]) {
    chain_lanes::<L, CHAINS_WIDE>(rounds, factors, values);
}

#[inline(always)]
fn narrow_lanes<L: Lanes>(rounds: usize, factors: [f32; 2], values: &mut [f32]) {
    chain_lanes::<L, CHAINS_NARROW>(rounds, factors, values);
}

#[inline(always)]
fn chain_lanes<L: Lanes, const CHAINS: usize>(
    rounds: usize,
    [left, right]: [f32; 2],
    values: &mut [f32],
) {
    let left = L::splat(left);
    let right = L::splat(right);
    let mut chains = [left; CHAINS];
    for (chain, values) in chains.iter_mut().zip(values.chunks_exact(LANES)) {
        *chain = L::from_slice(values);
    }
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = left.mul_add(right, *chain);
        }
    }
    for (chain, values) in chains.into_iter().zip(values.chunks_exact_mut(LANES)) {
        chain.write_to(values);
    }
}

#[cfg(test)]
mod tests {
    use super::super::bf16::{multiply_add_pair, pair};
    use super::{LANES, chain_count, run_chains, run_pair_chains, starts};
    use crate::{CpuBackend, InstructionSet, Precision};

    #[test]
    fn operations_are_counted_on_every_thread() {
        for set in InstructionSet::available() {
            for threads in [1, 3] {
                let cpu = CpuBackend::with_instructions(threads, set).expect("threads");
                let lanes = threads * 10 * chain_count(set) * LANES;
                assert_eq!(cpu.multiply_adds(10), 2.0 * lanes as f64);
                let factors = if set.has_bf16() { 2.0 } else { 1.0 };
                let cpu = cpu.with_precision(Precision::Bf16);
                assert_eq!(cpu.multiply_adds(10), 2.0 * factors * lanes as f64);
            }
        }
    }

    /// A lane whose value another has would cost a processor nothing.
    #[test]
    fn every_lane_of_every_chain_is_a_computation_of_its_own() {
        let started = starts();
        for set in InstructionSet::available() {
            let mut values = started;
            run_chains(set, 3, [0.5, 0.3], &mut values);
            let used = chain_count(set) * LANES;
            for (i, (found, start)) in values.iter().zip(started).enumerate() {
                let computed = (0..3).fold(start, |x, _| 0.5f32.mul_add(0.3, x));
                assert_eq!(*found, if i < used { computed } else { start }, "{set}, lane {i}");
                assert!(!values[..i].contains(found), "{set}: lane {i} repeats another");
            }
        }
    }

    #[test]
    fn every_lane_of_every_chain_of_pairs_is_a_computation_of_its_own() {
        if !InstructionSet::available().into_iter().any(InstructionSet::has_bf16) {
            return;
        }
        let (started, word) = (starts(), pair(0.5, 0.25));
        let mut values = started;
        run_pair_chains(3, word, &mut values);
        for (i, (found, start)) in values.iter().zip(started).enumerate() {
            let computed = (0..3).fold(start, |x, _| multiply_add_pair(word, word, x));
            assert_eq!(*found, computed, "lane {i}");
            assert!(!values[..i].contains(found), "lane {i} repeats another");
        }
    }
}
