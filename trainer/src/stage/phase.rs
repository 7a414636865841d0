//! The phases of an engine, each with the values that it alone has.

use zbelastic_consensus::validation::{GradientReport, Seal, SealApplication};
use zbelastic_kernels::{DeviceFault, Pending};
use zbelastic_schedule::Pass;

use super::evaluation::Evaluation;
use super::events::StageSetup;
use crate::data::StepTargets;

/// The phase that an engine is in.
#[derive(Debug)]
pub(super) enum EnginePhase {
    /// In the program of a turn.
    Program(ProgramRun),
    /// Behind it, waiting for the verdict before anything else may happen.
    Settling,
    /// Gathering the candidates that a verdict orders, of layers that other replicas update.
    Gathering(CandidateGathering),
    /// Evaluating on sealed weights.
    Evaluating(Evaluation),
    /// The run is over.
    Finished,
}

impl EnginePhase {
    /// A program at its first operation.
    pub(super) fn program(setup: &StageSetup) -> Self {
        let losses = StepLosses::new(setup);
        Self::Program(ProgramRun { cursor: 0, losses, report: None, pending: None })
    }

    /// The program that runs.
    ///
    /// # Panics
    /// If none does: only a program's operations may call this.
    pub(super) fn running(&mut self) -> &mut ProgramRun {
        match self {
            Self::Program(program) => program,
            Self::Settling | Self::Gathering(_) | Self::Evaluating(_) | Self::Finished => {
                unreachable!("an operation runs in a program")
            }
        }
    }

    /// The seal that a gate has applied and that is not carried out yet.
    pub(super) fn pending(&self) -> Option<PendingSeal> {
        match self {
            Self::Program(program) => program.pending,
            Self::Gathering(gathering) => Some(gathering.pending),
            Self::Settling | Self::Evaluating(_) | Self::Finished => None,
        }
    }
}

/// A turn's program under way.
#[derive(Debug)]
pub(super) struct ProgramRun {
    /// Index of the operation that runs next.
    pub(super) cursor: usize,
    pub(super) losses: StepLosses,
    /// The report, from REPORT to the gate that computes the prefix from it.
    pub(super) report: Option<GradientReport>,
    /// A seal applied by a gate, until STEP and COMMIT have carried it out.
    pub(super) pending: Option<PendingSeal>,
}

/// The operations behind STEP, run again for a seal that orders another candidate.
#[derive(Debug)]
pub(super) struct CandidateGathering {
    /// Index of the operation that runs next, of those that gather candidates.
    pub(super) cursor: usize,
    /// None are sent with candidates.
    pub(super) losses: StepLosses,
    /// The seal, whose candidates of own layers are computed.
    pub(super) pending: PendingSeal,
}

impl CandidateGathering {
    /// At the first operation.
    pub(super) fn new(setup: &StageSetup, pending: PendingSeal) -> Self {
        Self { cursor: 0, losses: StepLosses::new(setup), pending }
    }
}

/// What a gate found and the operations behind it carry out.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingSeal {
    pub(super) application: SealApplication,
    pub(super) seal: Seal,
}

/// Cross-entropies of a step's microbatches, slice by slice.
#[derive(Debug)]
pub(super) struct StepLosses {
    losses: Vec<Option<Pending<f64>>>,
    slice_count: usize,
    /// The targets of the step, once they are counted.
    targets: Option<StepTargets>,
}

impl StepLosses {
    fn new(setup: &StageSetup) -> Self {
        let slice_count = setup.plan.program.slice_count as usize;
        let parts = setup.plan.batch.microbatch_count as usize * slice_count;
        Self { losses: vec![None; parts], slice_count, targets: None }
    }

    /// The targets of the step, which `count` counts if that was not done yet.
    pub(super) fn targets(&mut self, count: impl FnOnce() -> StepTargets) -> StepTargets {
        *self.targets.get_or_insert_with(count)
    }

    /// Keeps the loss of a pass.
    pub(super) fn set(&mut self, pass: Pass, loss: Pending<f64>) {
        let index = pass.microbatch.index() * self.slice_count + pass.slice.index();
        self.losses[index] = Some(loss);
    }

    /// Keeps the loss of a pass, which a sibling has computed: passes are counted through, slice by
    /// slice.
    pub(super) fn set_of_sibling(&mut self, part: usize, loss: f64) {
        self.losses[part] = Some(loss.into());
    }

    /// The loss of a pass, for a sibling. It is waited for.
    pub(super) fn for_sibling(&self, part: usize) -> Result<f64, DeviceFault> {
        self.losses[part].as_ref().expect("every pass below has a loss").wait()
    }

    /// The sum of all, added up in order. They are waited for.
    pub(super) fn sum(&self) -> Result<f64, DeviceFault> {
        let losses = self.losses.iter().flatten();
        assert_eq!(losses.clone().count(), self.losses.len(), "every microbatch has a loss");
        losses.map(Pending::wait).try_fold(0.0, |sum, loss| Ok(sum + loss?))
    }
}
