//! What a worker multiplies and adds at best, as it reports it: by the type of factors, for bfloat16
//! numbers have an instruction of their own on some processors.

use zbelastic_kernels::{InstructionSet, Precision};

use crate::{machine_core_count, thread_peak_flop_per_s};

/// What is multiplied and added at best, in floating-point operations a second.
#[derive(Clone, Copy, Debug)]
pub struct PeakRates {
    /// By as many cores as the worker has threads.
    pub own: u64,
    /// By all cores of its machine.
    pub of_machine: u64,
}

/// The peak rates of a worker by the type of factors.
#[derive(Clone, Copy, Debug)]
pub struct PeakRatesByPrecision {
    f32: PeakRates,
    bf16: PeakRates,
}

impl PeakRatesByPrecision {
    /// Measures those of a worker of so many threads, in some tens of milliseconds; none if threads
    /// cannot be started.
    #[must_use]
    pub fn measure(threads: usize) -> Option<Self> {
        let rates = |precision| {
            let of_a_thread = thread_peak_flop_per_s(threads, precision).ok()?;
            let of = |cores: usize| (of_a_thread * cores as f64) as u64;
            Some(PeakRates { own: of(threads), of_machine: of(machine_core_count()) })
        };
        let f32 = rates(Precision::F32)?;
        // Without an instruction for pairs, factors are multiplied as floats are.
        let has_bf16 = InstructionSet::of_environment().is_ok_and(InstructionSet::has_bf16);
        let bf16 = if has_bf16 { rates(Precision::Bf16)? } else { f32 };
        Some(Self { f32, bf16 })
    }

    /// The rates of a job whose products have factors of this type.
    #[must_use]
    pub const fn of(self, precision: Precision) -> PeakRates {
        match precision {
            Precision::F32 => self.f32,
            Precision::Bf16 => self.bf16,
        }
    }
}
