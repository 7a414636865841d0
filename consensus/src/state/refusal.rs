//! Why an entry changed nothing.

use zbelastic_types::{Generation, LayerId, Step};

use crate::access::AccessRefusal;
use crate::codec::Format;
use crate::history::DiffersFromLog;
use crate::job::JobRefusal;
use crate::member::Holder;
use crate::plan::PlanRefusal;
use crate::validation::SealRefusal;

/// Why an entry changed nothing when it was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryRefusal {
    /// None of its changes of members fits.
    #[error("no change of members fits")]
    Members,
    /// There is no job, or one already.
    #[error(transparent)]
    Job(#[from] JobRefusal),
    /// No node is admitted or banned by it.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The plan is not accepted.
    #[error(transparent)]
    Plan(#[from] PlanRefusal),
    /// The format is not newer than the one that is agreed on.
    #[error("format {found}, format {agreed} is agreed on")]
    Format {
        /// Format that is agreed on.
        agreed: Format,
        /// Format that the entry names.
        found: Format,
    },
    /// It is about another plan (rule R2).
    #[error("of generation {found}, the plan is generation {expected}")]
    OtherGeneration {
        /// Generation of the plan in force.
        expected: Generation,
        /// Generation that the entry names.
        found: Generation,
    },
    /// The plan's program does not run.
    #[error("generation {generation} does not run")]
    NotRunning {
        /// Generation of the plan in force.
        generation: Generation,
    },
    /// The plan is not waiting for its holders.
    #[error("generation {generation} is not loading")]
    NotLoading {
        /// Generation that the entry names.
        generation: Generation,
    },
    /// The named holder has no stage, or is lost.
    #[error("{holder} has no part in it")]
    NotAHolder {
        /// The holder that the entry names.
        holder: Holder,
    },
    /// The holder reported ready before.
    #[error("{holder} was ready before")]
    AlreadyReady {
        /// The holder that is ready already.
        holder: Holder,
    },
    /// The layers named are not those of the stage.
    #[error("{holder} does not name the layers of its stage")]
    OtherLayers {
        /// The holder that names other layers.
        holder: Holder,
    },
    /// At least one stage is not ready.
    #[error("{missing} stages are not ready")]
    NotReady {
        /// Number of stages that are not ready.
        missing: u32,
    },
    /// The states that two nodes loaded differ, or the loaded state and the expected one.
    #[error("layer {layer} was loaded with different digests")]
    DigestsDiffer {
        /// Index of the layer that differs.
        layer: LayerId,
    },
    /// The seal does not fit the ledger.
    #[error(transparent)]
    Seal(#[from] SealRefusal),
    /// The seal differs from the one that is logged.
    #[error(transparent)]
    Differs(#[from] DiffersFromLog),
    /// No such checkpoint is under way, or there.
    #[error("no checkpoint of version {version}")]
    NoCheckpoint {
        /// Version that the entry names.
        version: Step,
    },
    /// The version that is to become a checkpoint is not the one that follows.
    #[error("version {found} is to become a checkpoint, the next one is {expected}")]
    NotNext {
        /// The version that follows the open one.
        expected: Step,
        /// Version that the entry names.
        found: Step,
    },
    /// A layer was reported durable with another digest, or is unknown.
    #[error("layer {layer} of version {version} does not fit")]
    DurableLayer {
        /// Version that the entry names.
        version: Step,
        /// Index of the layer in the model.
        layer: LayerId,
    },
    /// Not all layers of the version are durable.
    #[error("version {version} has {found} of {expected} layers")]
    Incomplete {
        /// Version that the entry names.
        version: Step,
        /// Number of layers of the model.
        expected: u32,
        /// Number of layers that are durable.
        found: u32,
    },
    /// The run is not that far.
    #[error("version {to} is ahead of version {open}")]
    AheadOfLedger {
        /// Version that the entry names.
        to: Step,
        /// The open version.
        open: Step,
    },
    /// The run cannot go back that far: the steps sealed since are forgotten.
    #[error("version {to} lies before {base}, what was sealed in between is forgotten")]
    Forgotten {
        /// Version that the entry names.
        to: Step,
        /// The first step remembered.
        base: Step,
    },
}
