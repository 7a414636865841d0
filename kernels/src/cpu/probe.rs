//! The most a processor can do: multiply-adds on registers alone.

use std::hint::black_box;

use super::backend::CpuBackend;
use super::lanes::{LANES, Lanes, dispatch};

/// Chains side by side. Two units with a latency of four cycles need eight to be kept busy; more
/// than twelve would not fit in the registers of AVX2.
const CHAINS: usize = 12;

pub(super) fn multiply_adds(cpu: &CpuBackend, rounds: usize) -> f64 {
    let count = cpu.threads().count();
    cpu.threads().run(count, |_| {
        black_box(run_chains(cpu.instruction_set(), rounds, black_box(0.999)));
    });
    2.0 * (count * rounds * CHAINS * LANES) as f64
}

#[inline(always)]
fn chain_lanes<L: Lanes>(rounds: usize, factor: f32) -> f32 {
    let factor = L::splat(factor);
    let mut chains = [factor; CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = chain.mul_add(factor, factor);
        }
    }
    chains.into_iter().map(|chain| chain.to_array()[0]).sum()
}

dispatch!(fn run_chains(rounds: usize, factor: f32) -> f32 = chain_lanes);

#[cfg(test)]
mod tests {
    use crate::CpuBackend;

    #[test]
    fn operations_are_counted_on_every_thread() {
        for threads in [1, 3] {
            let cpu = CpuBackend::new(threads).expect("threads");
            assert_eq!(cpu.multiply_adds(10), (threads * 10 * 12 * 16 * 2) as f64);
        }
    }
}
