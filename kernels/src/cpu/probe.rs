//! The most a processor can do: multiply-adds on registers alone.
//!
//! Each lane of each chain has a value of its own. Where two were equal, a compiler would compute
//! one of them, and a set whose vectors lie in two registers would seem twice as fast as it is.

use std::hint::black_box;

use super::backend::CpuBackend;
use super::instruction_set::InstructionSet;
use super::lanes::{LANES, Lanes, dispatch};

/// Chains side by side in 512-bit registers. Two units with a latency of four cycles need eight to
/// be kept busy.
const CHAINS_WIDE: usize = 12;
/// Chains in pairs of 256-bit registers: 12 of 16 registers.
const CHAINS_NARROW: usize = 6;

/// Chains that keep the units busy and fit into registers.
const fn chain_count(set: InstructionSet) -> usize {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => CHAINS_WIDE,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => CHAINS_NARROW,
        InstructionSet::Portable => CHAINS_NARROW,
    }
}

pub(super) fn multiply_adds(cpu: &CpuBackend, rounds: usize) -> f64 {
    let count = cpu.threads().count();
    let set = cpu.instruction_set();
    cpu.threads().run(count, |_| {
        let mut values = black_box(starts());
        run_chains(set, rounds, black_box([0.999, 0.001]), &mut values);
        black_box(values);
    });
    2.0 * (count * rounds * chain_count(set) * LANES) as f64
}

/// A value for each lane of each chain.
fn starts() -> [f32; CHAINS_WIDE * LANES] {
    std::array::from_fn(|i| 1.0 + i as f32 / 256.0)
}

/// `value * factor + addend`, `rounds` times in a row, of all values of the set's chains.
fn run_chains(
    set: InstructionSet,
    rounds: usize,
    factor_addend: [f32; 2],
    values: &mut [f32; CHAINS_WIDE * LANES],
) {
    match chain_count(set) {
        CHAINS_WIDE => wide_chains(set, rounds, factor_addend, values),
        CHAINS_NARROW => narrow_chains(set, rounds, factor_addend, values),
        count => unreachable!("no loop has {count} chains"),
    }
}

dispatch!(fn wide_chains(rounds: usize, factor_addend: [f32; 2], values: &mut [f32]) = wide_lanes);
dispatch!(
    fn narrow_chains(rounds: usize, factor_addend: [f32; 2], values: &mut [f32]) = narrow_lanes
);

#[inline(always)]
fn wide_lanes<L: Lanes>(rounds: usize, factor_addend: [f32; 2], values: &mut [f32]) {
    chain_lanes::<L, CHAINS_WIDE>(rounds, factor_addend, values);
}

#[inline(always)]
fn narrow_lanes<L: Lanes>(rounds: usize, factor_addend: [f32; 2], values: &mut [f32]) {
    chain_lanes::<L, CHAINS_NARROW>(rounds, factor_addend, values);
}

#[inline(always)]
fn chain_lanes<L: Lanes, const CHAINS: usize>(
    rounds: usize,
    [factor, addend]: [f32; 2],
    values: &mut [f32],
) {
    let factor = L::splat(factor);
    let addend = L::splat(addend);
    let mut chains = [factor; CHAINS];
    for (chain, values) in chains.iter_mut().zip(values.chunks_exact(LANES)) {
        *chain = L::from_slice(values);
    }
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = chain.mul_add(factor, addend);
        }
    }
    for (chain, values) in chains.into_iter().zip(values.chunks_exact_mut(LANES)) {
        chain.write_to(values);
    }
}

#[cfg(test)]
mod tests {
    use super::{LANES, chain_count, run_chains, starts};
    use crate::{CpuBackend, InstructionSet};

    #[test]
    fn operations_are_counted_on_every_thread() {
        for set in InstructionSet::available() {
            for threads in [1, 3] {
                let cpu = CpuBackend::with_instructions(threads, set).expect("threads");
                let lanes = threads * 10 * chain_count(set) * LANES;
                assert_eq!(cpu.multiply_adds(10), 2.0 * lanes as f64);
            }
        }
    }

    /// A lane whose value another has would cost a processor nothing.
    #[test]
    fn every_lane_of_every_chain_is_a_computation_of_its_own() {
        let started = starts();
        for set in InstructionSet::available() {
            let mut values = started;
            run_chains(set, 3, [0.5, 0.25], &mut values);
            let used = chain_count(set) * LANES;
            for (i, (found, start)) in values.iter().zip(started).enumerate() {
                let computed = (0..3).fold(start, |x, _| x.mul_add(0.5, 0.25));
                assert_eq!(*found, if i < used { computed } else { start }, "{set}, lane {i}");
                assert!(!values[..i].contains(found), "{set}: lane {i} repeats another");
            }
        }
    }
}
