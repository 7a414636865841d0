//! The bugs that are known: the broken rule, and the check that is there for it.

use std::fmt;

use zbelastic_consensus::mutant::Mutant;

use crate::bug::Bug;
use crate::failure::Invariant;

/// A known bug, as the switch that brings it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBug {
    /// In the product's code.
    Mutant(Mutant),
    /// In the simulated machines or the compute models.
    Bug(Bug),
}

impl KnownBug {
    /// All of them, by their numbers.
    pub const ALL: [Self; 66] = [
        Self::Bug(Bug::M1AckBeforeSync),
        Self::Mutant(Mutant::M2TurnUnchecked),
        Self::Bug(Bug::M3MomentsNotRestored),
        Self::Bug(Bug::M4GradientsKept),
        Self::Bug(Bug::M5OldProgram),
        Self::Mutant(Mutant::M6AppliedTwice),
        Self::Mutant(Mutant::M7CursorMoves),
        Self::Bug(Bug::M8ToldBeforeDurable),
        Self::Mutant(Mutant::M9ReplayLeftOut),
        Self::Mutant(Mutant::M10NanPasses),
        Self::Mutant(Mutant::M11NoJointConsensus),
        Self::Mutant(Mutant::M12FencedAccepted),
        Self::Bug(Bug::M13DrawsNotRolledBack),
        Self::Bug(Bug::M14UpdatesNotRolledBack),
        Self::Bug(Bug::M15OrderDependsOnSchedule),
        Self::Mutant(Mutant::M16NormByStage),
        Self::Bug(Bug::M17ReplayFromOtherState),
        Self::Bug(Bug::M18RemovedTooEarly),
        Self::Mutant(Mutant::M21WaitsForTheDead),
        Self::Mutant(Mutant::M24UndoFreedAtProposal),
        Self::Mutant(Mutant::M25RejectedCounted),
        Self::Mutant(Mutant::M26GoodStepSkipped),
        Self::Mutant(Mutant::M27RewindsForEveryLoss),
        Self::Mutant(Mutant::M28FollowedTooOld),
        Self::Mutant(Mutant::M29SilenceIsLoss),
        Self::Mutant(Mutant::M30CollectsByManifest),
        Self::Mutant(Mutant::M31FirstRefusalFails),
        Self::Mutant(Mutant::M32DamageEndsFetch),
        Self::Mutant(Mutant::M33ScrubIsSilent),
        Self::Mutant(Mutant::M34FirstNodesOnly),
        Self::Mutant(Mutant::M35DamagedIndexRefuses),
        Self::Mutant(Mutant::M36AnyCloseEnds),
        Self::Mutant(Mutant::M37KeepsAnything),
        Self::Mutant(Mutant::M38DigestUnchecked),
        Self::Mutant(Mutant::M39LossOfAnybody),
        Self::Mutant(Mutant::M40RemovalForgotten),
        Self::Mutant(Mutant::M41WorkersIgnoreBans),
        Self::Mutant(Mutant::M42NeverAtTheDoor),
        Self::Mutant(Mutant::M43RaisedForTheConnected),
        Self::Mutant(Mutant::M44DriftForgotten),
        Self::Bug(Bug::M45EmbeddingAddsFirst),
        Self::Bug(Bug::M46FirstComeFirstJoined),
        Self::Bug(Bug::M47PartAddedTwice),
        Self::Bug(Bug::M48PartLeftOut),
        Self::Mutant(Mutant::M49KeepingForEver),
        Self::Mutant(Mutant::M50AuthorityForgotten),
        Self::Bug(Bug::M51ReroutedLaneLeftOut),
        Self::Mutant(Mutant::M52CandidateKept),
        Self::Mutant(Mutant::M53FollowedCountsAsSealed),
        Self::Mutant(Mutant::M54WholeCopiesOnly),
        Self::Bug(Bug::M55SumNotGathered),
        Self::Mutant(Mutant::M56AnyVersionsAhead),
        Self::Mutant(Mutant::M57IoFaultRefuses),
        Self::Mutant(Mutant::M58DisksNotAwaited),
        Self::Mutant(Mutant::M59ReportedBeforePublished),
        Self::Mutant(Mutant::M60CopyNotMixed),
        Self::Mutant(Mutant::M61GivenUpAtOnce),
        Self::Mutant(Mutant::M62HeldWithTheLastLog),
        Self::Bug(Bug::M63StaleCandidateGathered),
        Self::Bug(Bug::M64ShardWithTwoOwners),
        Self::Bug(Bug::M65ShardWithoutOwner),
        Self::Mutant(Mutant::M66DamageStaysClosed),
        Self::Mutant(Mutant::R2GenerationUnchecked),
        Self::Mutant(Mutant::R3SealedBeforeHeld),
        Self::Mutant(Mutant::R5CheckpointBeforeSeal),
        Self::Bug(Bug::Canary),
    ];

    /// Its name in `docs/chaos.md`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bug(Bug::M1AckBeforeSync) => "m1",
            Self::Mutant(Mutant::M2TurnUnchecked) => "m2",
            Self::Bug(Bug::M3MomentsNotRestored) => "m3",
            Self::Bug(Bug::M4GradientsKept) => "m4",
            Self::Bug(Bug::M5OldProgram) => "m5",
            Self::Mutant(Mutant::M6AppliedTwice) => "m6",
            Self::Mutant(Mutant::M7CursorMoves) => "m7",
            Self::Bug(Bug::M8ToldBeforeDurable) => "m8",
            Self::Mutant(Mutant::M9ReplayLeftOut) => "m9",
            Self::Mutant(Mutant::M10NanPasses) => "m10",
            Self::Mutant(Mutant::M11NoJointConsensus) => "m11",
            Self::Mutant(Mutant::M12FencedAccepted) => "m12",
            Self::Bug(Bug::M13DrawsNotRolledBack) => "m13",
            Self::Bug(Bug::M14UpdatesNotRolledBack) => "m14",
            Self::Bug(Bug::M15OrderDependsOnSchedule) => "m15",
            Self::Mutant(Mutant::M16NormByStage) => "m16",
            Self::Bug(Bug::M17ReplayFromOtherState) => "m17",
            Self::Bug(Bug::M18RemovedTooEarly) => "m18",
            Self::Mutant(Mutant::M21WaitsForTheDead) => "m21",
            Self::Mutant(Mutant::M24UndoFreedAtProposal) => "m24",
            Self::Mutant(Mutant::M25RejectedCounted) => "m25",
            Self::Mutant(Mutant::M26GoodStepSkipped) => "m26",
            Self::Mutant(Mutant::M27RewindsForEveryLoss) => "m27",
            Self::Mutant(Mutant::M28FollowedTooOld) => "m28",
            Self::Mutant(Mutant::M29SilenceIsLoss) => "m29",
            Self::Mutant(Mutant::M30CollectsByManifest) => "m30",
            Self::Mutant(Mutant::M31FirstRefusalFails) => "m31",
            Self::Mutant(Mutant::M32DamageEndsFetch) => "m32",
            Self::Mutant(Mutant::M33ScrubIsSilent) => "m33",
            Self::Mutant(Mutant::M34FirstNodesOnly) => "m34",
            Self::Mutant(Mutant::M35DamagedIndexRefuses) => "m35",
            Self::Mutant(Mutant::M36AnyCloseEnds) => "m36",
            Self::Mutant(Mutant::M37KeepsAnything) => "m37",
            Self::Mutant(Mutant::M38DigestUnchecked) => "m38",
            Self::Mutant(Mutant::M39LossOfAnybody) => "m39",
            Self::Mutant(Mutant::M40RemovalForgotten) => "m40",
            Self::Mutant(Mutant::M41WorkersIgnoreBans) => "m41",
            Self::Mutant(Mutant::M42NeverAtTheDoor) => "m42",
            Self::Mutant(Mutant::M43RaisedForTheConnected) => "m43",
            Self::Mutant(Mutant::M44DriftForgotten) => "m44",
            Self::Bug(Bug::M45EmbeddingAddsFirst) => "m45",
            Self::Bug(Bug::M46FirstComeFirstJoined) => "m46",
            Self::Bug(Bug::M47PartAddedTwice) => "m47",
            Self::Bug(Bug::M48PartLeftOut) => "m48",
            Self::Mutant(Mutant::M49KeepingForEver) => "m49",
            Self::Mutant(Mutant::M50AuthorityForgotten) => "m50",
            Self::Bug(Bug::M51ReroutedLaneLeftOut) => "m51",
            Self::Mutant(Mutant::M52CandidateKept) => "m52",
            Self::Mutant(Mutant::M53FollowedCountsAsSealed) => "m53",
            Self::Mutant(Mutant::M54WholeCopiesOnly) => "m54",
            Self::Bug(Bug::M55SumNotGathered) => "m55",
            Self::Mutant(Mutant::M56AnyVersionsAhead) => "m56",
            Self::Mutant(Mutant::M57IoFaultRefuses) => "m57",
            Self::Mutant(Mutant::M58DisksNotAwaited) => "m58",
            Self::Mutant(Mutant::M59ReportedBeforePublished) => "m59",
            Self::Mutant(Mutant::M60CopyNotMixed) => "m60",
            Self::Mutant(Mutant::M61GivenUpAtOnce) => "m61",
            Self::Mutant(Mutant::M62HeldWithTheLastLog) => "m62",
            Self::Bug(Bug::M63StaleCandidateGathered) => "m63",
            Self::Bug(Bug::M64ShardWithTwoOwners) => "m64",
            Self::Bug(Bug::M65ShardWithoutOwner) => "m65",
            Self::Mutant(Mutant::M66DamageStaysClosed) => "m66",
            Self::Mutant(Mutant::R2GenerationUnchecked) => "R2",
            Self::Mutant(Mutant::R3SealedBeforeHeld) => "R3",
            Self::Mutant(Mutant::R5CheckpointBeforeSeal) => "R5",
            Self::Bug(Bug::Canary) => "canary",
        }
    }

    /// Whether lives of housekeeping are there for it, and not those of training.
    #[must_use]
    pub fn is_of_housekeeping(self) -> bool {
        self.expected().iter().all(|invariant| invariant.is_of_housekeeping())
    }

    /// The rule that the switch breaks, in words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Bug(Bug::M1AckBeforeSync) => "a record is acknowledged before it is durable",
            Self::Mutant(Mutant::M2TurnUnchecked) => {
                "a worker does not look at the turn of activations"
            }
            Self::Bug(Bug::M3MomentsNotRestored) => {
                "a rollback restores weights, and not the second moments"
            }
            Self::Bug(Bug::M4GradientsKept) => {
                "gradients of a dropped attempt are kept across a new plan"
            }
            Self::Bug(Bug::M5OldProgram) => "a stage keeps the program of the plan before",
            Self::Mutant(Mutant::M6AppliedTwice) => {
                "a verdict is applied again when it is sent again (R8 off)"
            }
            Self::Mutant(Mutant::M7CursorMoves) => {
                "a step that is run again reads the data after it"
            }
            Self::Bug(Bug::M8ToldBeforeDurable) => {
                "a checkpoint is reported before its pieces are durable"
            }
            Self::Mutant(Mutant::M9ReplayLeftOut) => "a step that is to be run again is left out",
            Self::Mutant(Mutant::M10NanPasses) => {
                "a norm that is not a number passes for a small one"
            }
            Self::Mutant(Mutant::M11NoJointConsensus) => "voters change without joint consensus",
            Self::Mutant(Mutant::M12FencedAccepted) => "what a fenced node sends is accepted",
            Self::Bug(Bug::M13DrawsNotRolledBack) => "draws are not rolled back",
            Self::Bug(Bug::M14UpdatesNotRolledBack) => {
                "the count of updates goes on with the candidate (R4 off)"
            }
            Self::Bug(Bug::M15OrderDependsOnSchedule) => {
                "gradients add up in the order of the schedule"
            }
            Self::Mutant(Mutant::M16NormByStage) => "squared sums are added stage by stage",
            Self::Bug(Bug::M17ReplayFromOtherState) => {
                "a step that is run again begins with another state"
            }
            Self::Bug(Bug::M18RemovedTooEarly) => {
                "an old checkpoint is removed before the new one is agreed on"
            }
            Self::Mutant(Mutant::M21WaitsForTheDead) => "a plan waits for those who are gone",
            Self::Mutant(Mutant::M24UndoFreedAtProposal) => {
                "what undoes a step is given up when its seal is proposed (R1 off)"
            }
            Self::Mutant(Mutant::M25RejectedCounted) => {
                "a rejected step counts in the picture of what is normal"
            }
            Self::Mutant(Mutant::M26GoodStepSkipped) => "a good step is left out",
            Self::Mutant(Mutant::M27RewindsForEveryLoss) => {
                "a run goes back whenever a holder was lost"
            }
            Self::Mutant(Mutant::M28FollowedTooOld) => {
                "a plan begins with what was followed, whatever version it has"
            }
            Self::Mutant(Mutant::M29SilenceIsLoss) => {
                "a layer is lost when an answer about it is late (R9 off)"
            }
            Self::Mutant(Mutant::M30CollectsByManifest) => {
                "a store without manifests, as a worker's is, collects nothing"
            }
            Self::Mutant(Mutant::M31FirstRefusalFails) => {
                "a piece fails with the first node that does not keep it"
            }
            Self::Mutant(Mutant::M32DamageEndsFetch) => {
                "hashes of a text that are damaged at one node are requested of no other"
            }
            Self::Mutant(Mutant::M33ScrubIsSilent) => {
                "what is found damaged on the own disk is not reported"
            }
            Self::Mutant(Mutant::M34FirstNodesOnly) => "plans are tried on the first nodes only",
            Self::Mutant(Mutant::M35DamagedIndexRefuses) => {
                "a damaged index keeps its node from starting"
            }
            Self::Mutant(Mutant::M36AnyCloseEnds) => {
                "a peer that closes a connection with it ends a process"
            }
            Self::Mutant(Mutant::M37KeepsAnything) => {
                "what is requested to be kept is held against no job"
            }
            Self::Mutant(Mutant::M38DigestUnchecked) => {
                "the digest of what came is not compared before it counts as kept"
            }
            Self::Mutant(Mutant::M39LossOfAnybody) => "anybody's held-out loss counts",
            Self::Mutant(Mutant::M40RemovalForgotten) => {
                "an ephemeral node that is removed is forgotten, ban and all"
            }
            Self::Mutant(Mutant::M41WorkersIgnoreBans) => {
                "workers close no connection of a removed node"
            }
            Self::Mutant(Mutant::M42NeverAtTheDoor) => {
                "whose certificate ended asks over connections that nobody accepts"
            }
            Self::Mutant(Mutant::M43RaisedForTheConnected) => {
                "the format is raised for those who are connected, whatever the others read"
            }
            Self::Mutant(Mutant::M44DriftForgotten) => {
                "a plan that was made for a drift is reviewed as soon as any other"
            }
            Self::Bug(Bug::M45EmbeddingAddsFirst) => {
                "the stage with the embedding adds the parts of a tied gradient in the other order"
            }
            Self::Bug(Bug::M46FirstComeFirstJoined) => {
                "sums of lanes are joined in the order in which they came, and not as the tree says"
            }
            Self::Bug(Bug::M47PartAddedTwice) => {
                "the sum of another subtree of replicas is added twice"
            }
            Self::Bug(Bug::M48PartLeftOut) => "the sum of another subtree of replicas is left out",
            Self::Mutant(Mutant::M49KeepingForEver) => {
                "a node that reports that it keeps a piece is waited for, however long it does"
            }
            Self::Mutant(Mutant::M50AuthorityForgotten) => {
                "a member with a certificate by the authority that follows forgets the one before"
            }
            Self::Bug(Bug::M51ReroutedLaneLeftOut) => {
                "the weight gradients of a lane that another worker takes over are left out"
            }
            Self::Mutant(Mutant::M52CandidateKept) => {
                "a worker that comes back has the open step among what is sealed"
            }
            Self::Mutant(Mutant::M53FollowedCountsAsSealed) => {
                "what is copied ahead counts as sealed, whatever updates it lacks"
            }
            Self::Mutant(Mutant::M54WholeCopiesOnly) => {
                "a damaged text comes from a node with all of it sound, or not at all"
            }
            Self::Mutant(Mutant::M56AnyVersionsAhead) => {
                "pieces of any number of versions that are no checkpoints yet are kept"
            }
            Self::Mutant(Mutant::M57IoFaultRefuses) => {
                "an operation of the store's files that fails at the start keeps a node from starting"
            }
            Self::Mutant(Mutant::M66DamageStaysClosed) => {
                "a store that is found damaged while its node runs stays closed"
            }
            Self::Mutant(Mutant::M62HeldWithTheLastLog) => {
                "a run is held only once no controller's log has space"
            }
            Self::Mutant(Mutant::M59ReportedBeforePublished) => {
                "a step is reported before the weights it begins with are published to other islands"
            }
            Self::Mutant(Mutant::M60CopyNotMixed) => {
                "a copy does not mix in what came of other islands"
            }
            Self::Mutant(Mutant::M61GivenUpAtOnce) => {
                "a checkpoint is given up with the first plan that could not read it"
            }
            Self::Mutant(Mutant::M58DisksNotAwaited) => {
                "a checkpoint is given up while a worker with a piece of it may come back (R11 off)"
            }
            Self::Bug(Bug::M55SumNotGathered) => {
                "the sums of floats that other replicas added are not gathered"
            }
            Self::Bug(Bug::M63StaleCandidateGathered) => {
                "a replica keeps its weights in the place of candidates that it gets"
            }
            Self::Bug(Bug::M64ShardWithTwoOwners) => {
                "a replica computes candidates of layers that another one updates"
            }
            Self::Bug(Bug::M65ShardWithoutOwner) => "no replica computes the candidates of a shard",
            Self::Mutant(Mutant::R2GenerationUnchecked) => {
                "the generation of a seal is checked when it is proposed only"
            }
            Self::Mutant(Mutant::R3SealedBeforeHeld) => {
                "an update is sealed before it is held elsewhere"
            }
            Self::Mutant(Mutant::R5CheckpointBeforeSeal) => {
                "a checkpoint is written when its last step reports, not when that is sealed"
            }
            Self::Bug(Bug::Canary) => "every life fails",
        }
    }

    /// The checks that must catch it, one of them.
    #[must_use]
    pub const fn expected(self) -> &'static [Invariant] {
        match self {
            // A voter that forgot the members waits for voters that were removed; voters that forgot a
            // plan agree on another one.
            Self::Bug(Bug::M1AckBeforeSync) => {
                &[Invariant::S2, Invariant::S4, Invariant::S6, Invariant::L1, Invariant::L3]
            }
            // Of several pipelines, another one's sum is reported before the stale pass is.
            Self::Mutant(Mutant::M2TurnUnchecked) => &[Invariant::S3, Invariant::N3],
            Self::Mutant(Mutant::M12FencedAccepted) => &[Invariant::S3],
            Self::Bug(Bug::M3MomentsNotRestored) => &[Invariant::N1, Invariant::N2, Invariant::L3],
            // A gradient that is kept may be the one that is not finite.
            Self::Bug(Bug::M4GradientsKept) => &[Invariant::N3, Invariant::N5],
            Self::Bug(Bug::M13DrawsNotRolledBack)
            | Self::Bug(Bug::M15OrderDependsOnSchedule)
            | Self::Bug(Bug::M45EmbeddingAddsFirst)
            | Self::Bug(Bug::M47PartAddedTwice)
            | Self::Bug(Bug::M48PartLeftOut)
            | Self::Bug(Bug::M51ReroutedLaneLeftOut)
            | Self::Bug(Bug::M55SumNotGathered)
            | Self::Bug(Bug::M63StaleCandidateGathered)
            | Self::Bug(Bug::M64ShardWithTwoOwners)
            | Self::Mutant(Mutant::M16NormByStage) => &[Invariant::N3],
            Self::Bug(Bug::M5OldProgram) | Self::Mutant(Mutant::R2GenerationUnchecked) => {
                &[Invariant::S4]
            }
            Self::Mutant(Mutant::M6AppliedTwice) | Self::Mutant(Mutant::M24UndoFreedAtProposal) => {
                &[Invariant::S9]
            }
            Self::Bug(Bug::M8ToldBeforeDurable)
            | Self::Bug(Bug::M18RemovedTooEarly)
            | Self::Mutant(Mutant::R5CheckpointBeforeSeal) => &[Invariant::C1],
            Self::Mutant(Mutant::M9ReplayLeftOut) => &[Invariant::S1, Invariant::L3],
            Self::Mutant(Mutant::M10NanPasses) => &[Invariant::N4],
            Self::Mutant(Mutant::M11NoJointConsensus) => &[Invariant::S2],
            Self::Bug(Bug::M14UpdatesNotRolledBack) | Self::Bug(Bug::M65ShardWithoutOwner) => {
                &[Invariant::N1]
            }
            // Where the step was sealed before, it never comes out as it did.
            Self::Mutant(Mutant::M7CursorMoves) | Self::Bug(Bug::M46FirstComeFirstJoined) => {
                &[Invariant::N3, Invariant::N5]
            }
            // Where its owner runs it again, its copy has another state.
            Self::Bug(Bug::M17ReplayFromOtherState) => &[Invariant::N2, Invariant::L3],
            Self::Mutant(Mutant::M21WaitsForTheDead) => &[Invariant::L1, Invariant::L3],
            Self::Mutant(Mutant::M25RejectedCounted) | Self::Mutant(Mutant::M26GoodStepSkipped) => {
                &[Invariant::N5]
            }
            Self::Mutant(Mutant::M27RewindsForEveryLoss)
            | Self::Mutant(Mutant::M29SilenceIsLoss) => &[Invariant::L3, Invariant::L4],
            Self::Mutant(Mutant::M43RaisedForTheConnected) => &[Invariant::F1],
            Self::Mutant(Mutant::M44DriftForgotten) => &[Invariant::L5],
            Self::Mutant(Mutant::M58DisksNotAwaited) => &[Invariant::L6],
            Self::Mutant(Mutant::M59ReportedBeforePublished) => &[Invariant::L1, Invariant::N1],
            Self::Mutant(Mutant::M60CopyNotMixed) => &[Invariant::N1],
            // A run whose only checkpoint is given up is held.
            Self::Mutant(Mutant::M61GivenUpAtOnce) => &[Invariant::L3, Invariant::N1],
            Self::Mutant(Mutant::M28FollowedTooOld) => &[Invariant::N1, Invariant::L3],
            // A step that is clipped or left out is one that is sealed, with other bits.
            Self::Mutant(Mutant::M52CandidateKept) => &[Invariant::S9, Invariant::N1],
            Self::Mutant(Mutant::M53FollowedCountsAsSealed) => &[Invariant::N1],
            Self::Mutant(Mutant::M30CollectsByManifest) => &[Invariant::H1],
            Self::Mutant(Mutant::M31FirstRefusalFails)
            | Self::Mutant(Mutant::M49KeepingForEver) => &[Invariant::H2],
            Self::Mutant(Mutant::M50AuthorityForgotten) => &[Invariant::H13],
            Self::Mutant(Mutant::M32DamageEndsFetch)
            | Self::Mutant(Mutant::M33ScrubIsSilent)
            | Self::Mutant(Mutant::M54WholeCopiesOnly) => &[Invariant::H3],
            Self::Mutant(Mutant::M34FirstNodesOnly) => &[Invariant::H6],
            // What it does to a store that is opened again it does at a start as well.
            Self::Mutant(Mutant::M35DamagedIndexRefuses) => &[Invariant::H9, Invariant::H15],
            Self::Mutant(Mutant::M57IoFaultRefuses) => &[Invariant::H9],
            Self::Mutant(Mutant::M36AnyCloseEnds) | Self::Mutant(Mutant::M39LossOfAnybody) => {
                &[Invariant::H10]
            }
            // A version far ahead is never collected.
            Self::Mutant(Mutant::M37KeepsAnything) => &[Invariant::H1, Invariant::H10],
            // Its pieces are fetched before those of others, which wait too long.
            Self::Mutant(Mutant::M56AnyVersionsAhead) => &[Invariant::H1, Invariant::H2],
            Self::Mutant(Mutant::M38DigestUnchecked) => &[Invariant::H4],
            Self::Mutant(Mutant::M40RemovalForgotten)
            | Self::Mutant(Mutant::M41WorkersIgnoreBans) => &[Invariant::H11],
            Self::Mutant(Mutant::M42NeverAtTheDoor) => &[Invariant::H12],
            Self::Mutant(Mutant::M62HeldWithTheLastLog) => &[Invariant::H14],
            Self::Mutant(Mutant::M66DamageStaysClosed) => &[Invariant::H15],
            // An update that is not held elsewhere is not compared either: a bit that flips is
            // sealed.
            Self::Mutant(Mutant::R3SealedBeforeHeld) => {
                &[Invariant::N1, Invariant::N2, Invariant::N3, Invariant::L3]
            }
            Self::Bug(Bug::Canary) => &[Invariant::Canary],
        }
    }
}

impl fmt::Display for KnownBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())
    }
}
