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
    /// Nobody is let in or kept out by it.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The plan is not accepted.
    #[error(transparent)]
    Plan(#[from] PlanRefusal),
    /// The format is not newer than the one that is agreed on.
    #[error("format {found}, format {agreed} is agreed on")]
    Format {
        /// The one that is agreed on.
        agreed: Format,
        /// The entry's.
        found: Format,
    },
    /// It is about another plan (rule R2).
    #[error("of generation {found}, the plan is generation {expected}")]
    OtherGeneration {
        /// The plan in force.
        expected: Generation,
        /// The entry's.
        found: Generation,
    },
    /// The plan's program does not run.
    #[error("generation {generation} does not run")]
    NotRunning {
        /// The plan in force.
        generation: Generation,
    },
    /// The plan is not waiting for its holders.
    #[error("generation {generation} is not loading")]
    NotLoading {
        /// The plan in force.
        generation: Generation,
    },
    /// Who is named has no stage, or is lost.
    #[error("{holder} has no part in it")]
    NotAHolder {
        /// Who.
        holder: Holder,
    },
    /// It was said before.
    #[error("{holder} was ready before")]
    AlreadyReady {
        /// Who.
        holder: Holder,
    },
    /// The layers named are not those of the stage.
    #[error("{holder} does not name the layers of its stage")]
    OtherLayers {
        /// Who.
        holder: Holder,
    },
    /// Somebody is not ready.
    #[error("{missing} stages are not ready")]
    NotReady {
        /// How many.
        missing: u32,
    },
    /// What two nodes loaded, or what was loaded and what was to be, differ.
    #[error("layer {layer} was loaded with different digests")]
    DigestsDiffer {
        /// The layer.
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
        /// The version named.
        version: Step,
    },
    /// The version that is to become a checkpoint is not the one that follows.
    #[error("version {found} is to become a checkpoint, the next one is {expected}")]
    NotNext {
        /// The next version.
        expected: Step,
        /// The one named.
        found: Step,
    },
    /// A layer was said to be durable with another digest, or is unknown.
    #[error("layer {layer} of version {version} does not fit")]
    DurableLayer {
        /// The version.
        version: Step,
        /// The layer.
        layer: LayerId,
    },
    /// Layers are missing.
    #[error("version {version} has {found} of {expected} layers")]
    Incomplete {
        /// The version.
        version: Step,
        /// Layers of the model.
        expected: u32,
        /// Layers that are durable.
        found: u32,
    },
    /// The run is not that far.
    #[error("version {to} is ahead of version {open}")]
    AheadOfLedger {
        /// The version named.
        to: Step,
        /// The version there is.
        open: Step,
    },
    /// The run cannot go back that far: what was sealed since is forgotten.
    #[error("version {to} lies before {base}, what was sealed in between is forgotten")]
    Forgotten {
        /// The version named.
        to: Step,
        /// The first step remembered.
        base: Step,
    },
}
