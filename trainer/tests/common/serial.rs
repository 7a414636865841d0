//! Serial runs that pipelines are held against.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::CpuBackend;
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::reference::{ReferenceStep, SerialReference};
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::Step;

use super::{PipelineOutcome, corpus};

/// The serial reference over the text of these tests, on one thread.
pub fn reference(setup: &StageSetup) -> SerialReference<CpuBackend, Arc<Corpus>> {
    let backend = CpuBackend::new(1).expect("one thread");
    SerialReference::new(setup, backend, corpus()).expect("memory")
}

/// The steps of a serial run of this arithmetic, and its digest. Step `skipped`, as people count, is
/// left out.
pub fn serial(setup: &StageSetup, skipped: Option<u64>) -> SerialOutcome {
    let mut run = reference(setup);
    let step = |step| run.step(Step(step), skipped == Some(step + 1));
    ((0..setup.step_count).map(step).collect(), run.digest())
}

/// The steps of a serial run, and its digest.
pub type SerialOutcome = (Vec<ReferenceStep>, StateDigest);

/// Serial runs of one model, each made when it is first asked for. Lanes and slices are a part of the
/// arithmetic, and so is a step that is left out; stages, chunks and orders are not.
#[derive(Default)]
pub struct SerialRuns {
    by_addends: BTreeMap<(u32, u32, bool), SerialOutcome>,
}

impl SerialRuns {
    /// That of a setup, with step `skipped`, as people count, left out.
    pub fn of(&mut self, setup: &StageSetup, skipped: Option<u64>) -> &SerialOutcome {
        let lanes = setup.plan.batch.lanes.get();
        let addends = (lanes, setup.plan.program.slice_count, skipped.is_some());
        self.by_addends.entry(addends).or_insert_with(|| serial(setup, skipped))
    }
}

/// Holds the norms that a pipeline sealed against those of a serial run, but for a step that was left
/// out, as people count.
pub fn check_norms(
    outcome: &PipelineOutcome,
    steps: &[ReferenceStep],
    skipped: Option<u64>,
    case: &str,
) {
    let sums = outcome.seals.iter().filter(|seal| seal.verdict.is_final());
    let sums: Vec<u64> = sums.map(|seal| seal.square_sum_bits).collect();
    for (step, expected) in steps.iter().enumerate() {
        if skipped != Some(step as u64 + 1) {
            assert_eq!(
                sums[step],
                expected.square_sum.to_bits(),
                "{case}: the norm of step {step}"
            );
        }
    }
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

    /// The step that is left out, if `step` is struck.
    pub fn skipped(self, step: u64) -> Option<u64> {
        (self == Self::Skipped).then_some(step)
    }

    /// Corrupts the gradient of a tensor at a step, as people count, if something befalls it.
    pub fn strike(self, setup: &mut StageSetup, step: u64, tensor: &str) {
        if self != Self::Nothing {
            let text = format!("step={step},tensor={tensor},value=nan");
            setup.injections = vec![text.parse().expect("a legal injection")];
        }
    }

    /// The policy under which it befalls the step.
    pub fn policy(self) -> NonfinitePolicy {
        match self {
            Self::Replayed => NonfinitePolicy::Replay,
            Self::Nothing | Self::Skipped => NonfinitePolicy::Skip,
        }
    }
}
