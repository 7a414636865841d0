//! Why a worker does not run the stage that a plan has for it.

use zbelastic_consensus::message::LoadFault;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_kernels::AllocateError;

use crate::plan::LaneCount;
use crate::stage::StageSetup;

/// Why a stage of a plan cannot be run. The cluster is sent a [`LoadFault`]; this is for the
/// operator of the machine.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StageRefusal {
    /// Memory does not hold it.
    #[error("memory did not hold it: {0}")]
    Memory(#[from] AllocateError),
    /// The plan has another arithmetic than the job.
    #[error(transparent)]
    Plan(#[from] PlanMismatch),
}

impl StageRefusal {
    /// What the cluster is sent. Another plan may be the job's; the worker is not at fault.
    pub(super) const fn fault(&self) -> LoadFault {
        match self {
            Self::Memory(_) => LoadFault::Memory,
            Self::Plan(_) => LoadFault::Source,
        }
    }
}

/// A plan that would train other bits than the job that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanMismatch {
    /// It cuts sequences into other slices.
    #[error("the plan cuts sequences into {found} slices, the job into {expected}")]
    Slices {
        /// Slices of the job.
        expected: u32,
        /// Slices of the plan.
        found: u32,
    },
    /// It runs in more replicas and directions than there are lanes.
    #[error("the plan runs lanes in {found} replicas and directions; the job has {lanes} lanes")]
    Directions {
        /// Lanes of the job.
        lanes: LaneCount,
        /// Replicas of the plan, of each pipeline one a direction.
        found: u32,
    },
    /// The head is tied to the token embedding, their matrix is trained, and the two ends exchange no
    /// gradient.
    #[error("the job's model is tied, and the plan exchanges no gradient between its ends")]
    Untied,
    /// The two ends exchange a gradient, and the head has a matrix of its own or theirs is frozen.
    #[error("the plan exchanges a gradient between the ends of the model, which are not tied")]
    Tied,
}

/// Checks that a plan has the arithmetic of the job, whose setup is `base`.
pub(super) fn check_arithmetic(base: &StageSetup, plan: &PlanRecord) -> Result<(), PlanMismatch> {
    let found = plan.program.slice_count;
    let expected = base.plan.program.slice_count;
    if found != expected {
        return Err(PlanMismatch::Slices { expected, found });
    }
    let found = plan.program.placement.replica_count();
    let lanes = base.plan.batch.lanes;
    if found > lanes.get() {
        return Err(PlanMismatch::Directions { lanes, found });
    }
    match (base.model.ties_gradients(), plan.program.is_tied()) {
        (true, false) => Err(PlanMismatch::Untied),
        (false, true) => Err(PlanMismatch::Tied),
        (true, true) | (false, false) => Ok(()),
    }
}
