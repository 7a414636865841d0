//! Serial runs that pipelines are held against.

use std::sync::Arc;

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::CpuBackend;
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::reference::{ReferenceStep, SerialReference};
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::Step;

use super::corpus;

/// The serial reference over the text of these tests, on one thread.
pub fn reference(setup: &StageSetup) -> SerialReference<CpuBackend, Arc<Corpus>> {
    let backend = CpuBackend::new(1).expect("one thread");
    SerialReference::new(setup, backend, corpus()).expect("memory")
}

/// The steps of a serial run of this arithmetic, and its digest. Step `skipped`, as people count, is
/// left out.
pub fn serial(setup: &StageSetup, skipped: Option<u64>) -> (Vec<ReferenceStep>, StateDigest) {
    let mut run = reference(setup);
    let step = |step| run.step(Step(step), skipped == Some(step + 1));
    ((0..setup.step_count).map(step).collect(), run.digest())
}

/// What befalls the step whose gradient is corrupted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StruckStepFate {
    Nothing,
    Replayed,
    Skipped,
}

impl StruckStepFate {
    /// All, in turn.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Replayed, Self::Skipped];

    /// The policy under which it befalls the step.
    pub fn policy(self) -> NonfinitePolicy {
        match self {
            Self::Replayed => NonfinitePolicy::Replay,
            Self::Nothing | Self::Skipped => NonfinitePolicy::Skip,
        }
    }
}
