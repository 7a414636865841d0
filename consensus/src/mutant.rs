//! Bugs that are known, to be switched on by the tests that must find them.
//!
//! Without the feature `mutants` every question here is answered with a constant `false`. A switch
//! holds for the thread it is thrown on, which is where a simulated cluster lives.

/// A known bug in this package, in the trainer or in the decisions of a node beside the protocol.
/// Names are those of `docs/chaos.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// R1 off, which is m24: the state to undo a step is given up when its seal is proposed.
    M24UndoFreedAtProposal,
    /// R2 off: the generation of a seal is checked when it is proposed only.
    R2GenerationUnchecked,
    /// R3 off: an update is sealed before it is held elsewhere.
    R3SealedBeforeHeld,
    /// R5 off: a checkpoint is written when its last step reports, not when that is sealed.
    R5CheckpointBeforeSeal,
    /// m2: a worker does not check the turn of activations.
    M2TurnUnchecked,
    /// m6: a verdict that is received again is applied again; R8 off.
    M6AppliedTwice,
    /// m7: a step that is run again reads the data after it.
    M7CursorMoves,
    /// m10: a norm that is not a number passes for a small one.
    M10NanPasses,
    /// m11: voters change without joint consensus.
    M11NoJointConsensus,
    /// m12: messages of a fenced node are accepted.
    M12FencedAccepted,
    /// m16: squared sums are added stage by stage.
    M16NormByStage,
    /// m21: a plan waits for members that are gone.
    M21WaitsForTheDead,
    /// m9: a step that is to be run again is left out.
    M9ReplayLeftOut,
    /// m25: a rejected step counts in the picture of a normal step.
    M25RejectedCounted,
    /// m26: a good step is left out.
    M26GoodStepSkipped,
    /// m27: a run goes back whenever a holder was lost.
    M27RewindsForEveryLoss,
    /// m28: a plan begins with the layers that were followed, in any version.
    M28FollowedTooOld,
    /// m29: a layer is lost when an answer about it is late; R9 off.
    M29SilenceIsLoss,
    /// m30: a store without manifests, as a worker's is, collects nothing.
    M30CollectsByManifest,
    /// m31: a piece fails with the first node that does not keep it.
    M31FirstRefusalFails,
    /// m32: a list of hashes that is not that of the data ends a fetch, whoever else has it.
    M32DamageEndsFetch,
    /// m33: an item that is found damaged on the own disk is not reported.
    M33ScrubIsSilent,
    /// m34: plans are tried on the first nodes only.
    M34FirstNodesOnly,
    /// m35: a damaged index keeps its node from starting.
    M35DamagedIndexRefuses,
    /// m36: any peer, not only a controller, ends a process by closing its connection.
    M36AnyCloseEnds,
    /// m37: a piece that is to be kept is not compared with the job's layers and versions.
    M37KeepsAnything,
    /// m38: the digest of a received piece is not compared before it counts as kept.
    M38DigestUnchecked,
    /// m39: a held-out loss counts from any node, even one that does not train the last layer.
    M39LossOfAnybody,
    /// m40: an ephemeral node that is removed is forgotten, ban and all.
    M40RemovalForgotten,
    /// m41: workers close no connection to a removed node.
    M41WorkersIgnoreBans,
    /// m42: a node with an expired certificate requests a new one over connections that no peer
    /// accepts.
    M42NeverAtTheDoor,
    /// m43: the format is raised for the nodes that are connected, without regard to the formats
    /// that the others read.
    M43RaisedForTheConnected,
    /// m44: a plan that was made for a drift is reviewed as soon as any other.
    M44DriftForgotten,
    /// m49: a node that reports that it keeps a piece is waited for, however long it does.
    M49KeepingForEver,
    /// m50: a member whose certificate is by the authority that follows forgets the one before it.
    M50AuthorityForgotten,
    /// m52: a worker that was declared lost and comes back reports the step that was open as sealed.
    M52CandidateKept,
    /// m53: a worker that copies layers ahead reports them as sealed, whatever updates they lack.
    M53FollowedCountsAsSealed,
    /// m54: a text that is damaged is fetched from a node that has all of it sound, or from none.
    M54WholeCopiesOnly,
    /// m56: a node keeps pieces of any number of versions that no checkpoint has yet.
    M56AnyVersionsAhead,
    /// m57: a node whose store's disk fails an operation at its start does not start.
    M57IoFaultRefuses,
    /// m58: a checkpoint is given up though a member with a piece on its disk was just lost; R11 off.
    M58DisksNotAwaited,
    /// m59: a step is reported before the weights that it begins with are published to other islands.
    M59ReportedBeforePublished,
    /// m60: a copy does not mix in what came of other islands.
    M60CopyNotMixed,
    /// m61: a checkpoint is given up with the first plan that could not read it.
    M61GivenUpAtOnce,
    /// m62: a run is held only once no controller's log has space.
    M62HeldWithTheLastLog,
    /// m66: a store that is found damaged while its node runs stays closed.
    M66DamageStaysClosed,
}

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Throws the switch on this thread.
    pub fn set(mutant: Option<Mutant>) {
        ACTIVE.with(|active| active.set(mutant));
    }

    /// Whether the switch is thrown.
    #[must_use]
    pub fn is(mutant: Mutant) -> bool {
        ACTIVE.with(|active| active.get() == Some(mutant))
    }
}

#[cfg(feature = "mutants")]
pub use switch::{is, set};

/// Whether the switch is thrown: never.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn is(_mutant: Mutant) -> bool {
    false
}
