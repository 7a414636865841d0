//! Named points of the protocol at which a process may die, and how often one did.

use serde::{Deserialize, Serialize};

use crate::counts::OccurrenceCounts;

/// A point of the protocol at which a process may die. Names follow the failpoints of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CrashPoint {
    /// Records are to be written.
    BeforeAppend,
    /// They are written, not durable.
    AfterAppendBeforeSync,
    /// They are durable, and nothing was sent yet.
    AfterSyncBeforeSend,
    /// An entry is applied, nothing that follows was done.
    AfterApply,
    /// A snapshot is to be written.
    BeforeSnapshotWrite,
    /// It is durable, older records are still there.
    AfterSnapshotBeforeTruncate,
    /// A snapshot of another node replaced the log.
    AfterInstall,
    /// Some stages reported, others did not.
    StatsPartial,
    /// All stages reported, nothing is proposed.
    BeforePropose,
    /// A seal is agreed on, and was sent to no worker.
    AfterCommitBeforeBroadcast,
    /// A seal was sent to some workers.
    BroadcastHalf,
    /// A plan is agreed on, and was sent to no worker.
    PlanCommittedBeforeLoad,
    /// Some holders are ready, others are not.
    BarrierHalf,
    /// A worker is admitted, nothing else.
    AdmittedBeforePlan,
    /// A controller that has no vote yet gets the log.
    LearnerCatchingUp,
    /// A worker is ordered to run the stage that it has loaded.
    BeforeStep,
    /// A worker learns of a seal.
    BeforeStageApply,
    /// It has applied one.
    AfterStageApply,
    /// Its gradient is frozen, and was not reported.
    BeforeReport,
    /// Some of a checkpoint's pieces are written.
    PiecesHalf,
    /// All are durable, and that was not reported.
    PiecesDoneBeforeTold,
    /// Some layers of a plan arrived.
    TransferHalf,
    /// A worker about to go does not wait for the end.
    DrainHalf,
    /// A stage receives a request for a layer ahead of a planned change.
    AskedAhead,
    /// Some layers arrived ahead of one.
    AheadHalf,
    /// All did, and that was not reported.
    FollowingBeforeTold,
}

impl CrashPoint {
    /// All crash points, in the order of the report.
    pub const ALL: [Self; 26] = [
        Self::BeforeAppend,
        Self::AfterAppendBeforeSync,
        Self::AfterSyncBeforeSend,
        Self::AfterApply,
        Self::BeforeSnapshotWrite,
        Self::AfterSnapshotBeforeTruncate,
        Self::AfterInstall,
        Self::StatsPartial,
        Self::BeforePropose,
        Self::AfterCommitBeforeBroadcast,
        Self::BroadcastHalf,
        Self::PlanCommittedBeforeLoad,
        Self::BarrierHalf,
        Self::AdmittedBeforePlan,
        Self::LearnerCatchingUp,
        Self::BeforeStep,
        Self::BeforeStageApply,
        Self::AfterStageApply,
        Self::BeforeReport,
        Self::PiecesHalf,
        Self::PiecesDoneBeforeTold,
        Self::TransferHalf,
        Self::DrainHalf,
        Self::AskedAhead,
        Self::AheadHalf,
        Self::FollowingBeforeTold,
    ];

    /// Those that a process seldom comes to.
    pub const RARE: [Self; 3] = [Self::AfterInstall, Self::LearnerCatchingUp, Self::DrainHalf];

    /// How many times at most it is passed before a process dies there, and one more. Points that
    /// are seldom reached are not passed at all.
    pub(crate) fn passes_limit(self) -> u64 {
        if Self::RARE.contains(&self) { 1 } else { 6 }
    }
}

/// How often processes died at each point.
pub type CrashPointCounts = OccurrenceCounts<CrashPoint>;
