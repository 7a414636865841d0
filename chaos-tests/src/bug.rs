//! Known bugs of the simulated machines and of the digest model; see also
//! [`zbelastic_consensus::mutant`] for those of the product's code.

/// A known bug that lies outside the product's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// m1: a record is acknowledged before it is durable.
    M1AckBeforeSync,
    /// m3: a rollback restores weights, not the second moments.
    M3MomentsNotRestored,
    /// m4: gradients of a dropped attempt are kept across a new plan.
    M4GradientsKept,
    /// m5: one stage keeps the program of the plan before.
    M5OldProgram,
    /// m8: a checkpoint is reported before its pieces are durable.
    M8ToldBeforeDurable,
    /// m13: draws are not rolled back.
    M13DrawsNotRolledBack,
    /// m14: the count of updates is not rolled back.
    M14UpdatesNotRolledBack,
    /// m15: gradients add up in the order of the schedule.
    M15OrderDependsOnSchedule,
    /// m17: a step that is run again begins with another state.
    M17ReplayFromOtherState,
    /// m18: an old checkpoint is removed before the new one is agreed on.
    M18RemovedTooEarly,
    /// m45: the stage with the embedding adds the parts of a tied gradient in the other order.
    M45EmbeddingAddsFirst,
    /// m46: sums of lanes are joined in the order in which they came, and not as the tree says.
    M46FirstComeFirstJoined,
    /// m47: the sum of another subtree of replicas is added twice.
    M47PartAddedTwice,
    /// m48: the sum of another subtree of replicas is left out.
    M48PartLeftOut,
    /// m51: the weight gradients of a lane that another worker takes over are computed by nobody.
    M51ReroutedLaneLeftOut,
    /// m55: the sums that other replicas made are not gathered.
    M55SumNotGathered,
    /// m63: a replica keeps the weights it has in the place of candidates that it gets.
    M63StaleCandidateGathered,
    /// m64: a replica computes candidates of layers that another one updates.
    M64ShardWithTwoOwners,
    /// m65: no replica computes the candidates of a shard.
    M65ShardWithoutOwner,
    /// The canary: every life fails.
    Canary,
}

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static ACTIVE: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Throws the switch on this thread.
    pub fn set(bug: Option<Bug>) {
        ACTIVE.with(|active| active.set(bug));
    }

    /// Whether the switch is thrown.
    #[must_use]
    pub fn is(bug: Bug) -> bool {
        ACTIVE.with(|active| active.get() == Some(bug))
    }
}

#[cfg(feature = "mutants")]
pub use switch::{is, set};

/// Whether the switch is thrown: never.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn is(_bug: Bug) -> bool {
    false
}
