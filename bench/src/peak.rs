//! The probe of the peak beside a loop in assembly, written apart from it: multiply-adds on
//! registers alone.
//!
//! The probe is plain code over vectors, which a compiler may simplify. The loop here is what it
//! must amount to, so the ratio of the two rates is one as long as the probe measures the processor.

use std::hint::black_box;
use std::time::{Duration, Instant};

use zbelastic_kernels::{CpuBackend, InstructionSet};
use zbelastic_machine::peak_flop_per_s;

/// Registers that hold sums: two units with a latency of four or five cycles need eight to ten, four
/// units sixteen.
const CHAINS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 12 };
/// Turns of a run: a few tens of milliseconds.
const ROUNDS: u64 = 4_000_000;
/// Runs of each, in turns.
const RUNS: usize = 10;

/// The best rates of both, in floating-point operations a second.
#[derive(Clone, Copy, Debug)]
pub struct CorePeakRates {
    /// By [`peak_flop_per_s`].
    pub probe: f64,
    /// By the loop of this file.
    pub assembly: f64,
}

/// Measures both in turns on one thread. `None` for an instruction set that has no loop here:
/// portable code is what a compiler makes of it, so there is no second way to write it.
pub fn measure(cpu: &CpuBackend) -> Option<CorePeakRates> {
    let AssemblyLoop { run, factors } = assembly_loop(cpu)?;
    let flop = 2.0 * ROUNDS as f64 * (CHAINS * factors) as f64;
    let mut best = CorePeakRates { probe: 0.0, assembly: 0.0 };
    for _ in 0..RUNS {
        let began = Instant::now();
        // SAFETY: a backend has only instruction sets that the processor has.
        unsafe { run(black_box(ROUNDS)) };
        best.assembly = best.assembly.max(flop / began.elapsed().as_secs_f64());
        best.probe = best.probe.max(peak_flop_per_s(cpu, Duration::from_millis(30)));
    }
    Some(best)
}

/// A loop of so many turns, and the factors in each of its registers.
struct AssemblyLoop {
    /// To be called where the processor has the instructions.
    run: unsafe fn(u64),
    factors: usize,
}

fn assembly_loop(cpu: &CpuBackend) -> Option<AssemblyLoop> {
    match cpu.instruction_set() {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 if cpu.multiplies_pairs() => {
            Some(AssemblyLoop { run: zmm_pair_chains, factors: 32 })
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => Some(AssemblyLoop { run: zmm_chains, factors: 16 }),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => Some(AssemblyLoop { run: ymm_chains, factors: 8 }),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => Some(AssemblyLoop { run: neon_chains, factors: 4 }),
        InstructionSet::Portable => None,
    }
}

/// A function that adds `$one` squared to each of the registers `$sum` by the instruction `$op`, over
/// and over. A one is the pair of bfloat16 numbers zero and one.
#[cfg(target_arch = "x86_64")]
macro_rules! chains {
    ($name:ident, $features:literal, $op:literal, $one:tt, $($sum:tt)+) => {
        /// # Safety
        /// The processor has the instructions.
        #[target_feature(enable = $features)]
        unsafe fn $name(rounds: u64) {
            // SAFETY: registers alone.
            unsafe {
                std::arch::asm!(
                    concat!("vbroadcastss ", $one, ", xmm15"),
                    $(concat!("vmovaps ", $sum, ", ", $one),)+
                    "2:",
                    $(concat!($op, " ", $sum, ", ", $one, ", ", $one),)+
                    "dec {rounds}",
                    "jnz 2b",
                    rounds = inout(reg) rounds => _,
                    inout("xmm15") 1.0f32 => _,
                    $(out($sum) _,)+
                    out($one) _,
                    options(nostack, nomem),
                );
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
chains!(
    zmm_chains, "avx512f", "vfmadd231ps", "zmm14", "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6"
    "zmm7" "zmm8" "zmm9" "zmm10" "zmm11"
);
#[cfg(target_arch = "x86_64")]
chains!(
    zmm_pair_chains, "avx512f,avx512bf16", "vdpbf16ps", "zmm14", "zmm0" "zmm1" "zmm2" "zmm3" "zmm4"
    "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11"
);
#[cfg(target_arch = "x86_64")]
chains!(
    ymm_chains, "avx2,fma", "vfmadd231ps", "ymm14", "ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5" "ymm6"
    "ymm7" "ymm8" "ymm9" "ymm10" "ymm11"
);

/// Adds one squared to 24 registers, over and over.
///
/// # Safety
/// The processor has NEON.
#[cfg(target_arch = "aarch64")]
unsafe fn neon_chains(rounds: u64) {
    macro_rules! chains {
        ($($sum:tt)+) => {
            // SAFETY: registers alone.
            unsafe {
                std::arch::asm!(
                    "fmov v31.4s, #1.0",
                    $(concat!("fmov ", $sum, ".4s, #1.0"),)+
                    "2:",
                    $(concat!("fmla ", $sum, ".4s, v31.4s, v31.4s"),)+
                    "subs {rounds}, {rounds}, #1",
                    "b.ne 2b",
                    rounds = inout(reg) rounds => _,
                    $(out($sum) _,)+
                    out("v31") _,
                    options(nostack, nomem),
                );
            }
        };
    }
    chains!(
        "v0" "v1" "v2" "v3" "v4" "v5" "v6" "v7" "v8" "v9" "v10" "v11" "v12" "v13" "v14" "v15" "v16"
        "v17" "v18" "v19" "v20" "v21" "v22" "v23"
    );
}
