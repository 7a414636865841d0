//! Things that must happen sometimes: a campaign in which one never did has not tried it.

use crate::counts::OccurrenceCounts;

/// Something that a campaign must have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Marker {
    /// A step was clipped after a candidate without clipping was computed.
    Clipped,
    /// A step was skipped.
    Skipped,
    /// A step was run again.
    Replayed,
    /// A step was rolled back twice.
    RolledBackTwice,
    /// A clip right after a step that was skipped or run again.
    ClipAfterRollback,
    /// Work was dropped while a planned change waited for which workers had come.
    RollbackDuringJoin,
    /// A worker was lost while such a change waited.
    LossDuringJoin,
    /// A leader died between a seal's commit and sending it to any worker.
    LeaderLostBeforeBroadcast,
    /// A seal of an earlier plan, or an entry that came too late, changed nothing.
    LateEntryIgnored,
    /// A frame two generations old was dropped.
    FrameTwoGenerationsOld,
    /// Fewer voters than a majority were up for a while, and the attempt went on.
    QuorumLostWithinAttempt,
    /// A controller that lagged behind got a snapshot.
    SnapshotInstalled,
    /// All stages changed hands in one plan.
    AllStagesMoved,
    /// A plan with fewer stages than the one before.
    FewerStages,
    /// A plan with more.
    MoreStages,
    /// A plan was given up while it loaded.
    ReplannedWhileLoading,
    /// A step that was sealed before came out the same again.
    RepeatedAsSealed,
    /// A copy replaced its owner.
    CopyTookOver,
    /// The run went back to a checkpoint.
    Rewound,
    /// A run went back because two nodes reported a state differently.
    StateDiffered,
    /// A sum was contradicted.
    SumContradicted,
    /// A node was not trusted any more.
    Quarantined,
    /// A checkpoint could not be read, and an older one was.
    OlderCheckpointUsed,
    /// A disk that was set back was found out.
    StaleDiskRefused,
    /// A torn record was cut off.
    TornTailCut,
    /// A damaged disk was not used.
    DamagedDiskRefused,
    /// Power went off everywhere.
    PowerCycled,
    /// A new cluster began from a checkpoint of one that was lost.
    RecoveredByForce,
    /// A node that hung was removed.
    HungNodeLost,
    /// A node was declared lost, lived on and came back.
    FencedNodeCameBack,
    /// A plan got a layer from such nodes alone: without what they kept the run had gone back.
    KeptLayersUsed,
    /// A node that was about to go was done without in time.
    Drained,
    /// A planned change began at its step.
    PlannedChange,
    /// A planned change began, and all layers that move had been copied ahead.
    CopiedAhead,
    /// A worker came while layers were copied ahead.
    JoinedWhileFollowing,
    /// The owner of a layer that was copied ahead was lost.
    OwnerLostWhileFollowed,
    /// The follower of a layer, which copies it ahead, was lost.
    FollowerLost,
    /// A version became a checkpoint because time had passed.
    TimedCheckpoint,
    /// Two holders of a plan with two copies were lost at once, and every layer was in memory
    /// still.
    PairSurvived,
    /// A plan with more stages than any life has that is not a large one.
    ManyStages,
    /// A plan was made because going ahead does not pay, or pays again.
    WindowSwitched,
    /// The format was raised, once the last program was a new one.
    FormatRaised,
    /// Nothing moved, and the same nodes began anew.
    Stalled,
    /// An inventory lasted longer than the leader once waited for it.
    LateInventory,
    /// Layers of a plan needed more than a hundred heartbeats to read, to move or to bring into
    /// place.
    LongLoad,
    /// An operation lasted more than a hundred heartbeats.
    LongOperation,
    /// A piece of a checkpoint needed more than a hundred heartbeats to be written.
    LongWrite,
    /// A node that owed an answer and got no further was removed.
    StuckNodeLost,
    /// A plan was made because machines need another time than the old plan was made for.
    DriftReplanned,
    /// Machines drifted, and the plan stayed: no other was much better, or too few steps were left.
    DriftKept,
    /// Two pipelines made one gradient of theirs.
    PipelinesAdded,
    /// Weights of another island were mixed into a layer.
    IslandsMixed,
    /// A version of a layer was published for other islands more than once.
    PublishedAgain,
    /// An operation of a folder of islands failed, and was tried again.
    IslandFolderFailed,
    /// A pipeline got the sum of all for numbers that another one added.
    SumsGathered,
    /// A pipeline got candidates of layers that another one updates.
    CandidatesGathered,
    /// The same for a step that was clipped, whose candidates before were dropped.
    ClippedCandidatesGathered,
    /// A worker was lost while each layer was trained by several pipelines, and none was read from a
    /// checkpoint.
    PipelineLost,
    /// Others at the same place went on with what a worker did that was lost or about to go, and no layer
    /// moved.
    Rerouted,
    /// The same where the worker was about to go.
    DrainRerouted,
    /// The same where several others each went on with a part of it.
    PlaceSplit,
    /// The same of replicas that share the optimizer: who went on updates the layers that the lost one did.
    ShardRerouted,
    /// A worker that joined got a place that another shared, and those that were there kept their layers.
    PlaceGiven,
    /// A plan in which workers stood in several replicas was followed by one in which none does.
    Unshared,
    /// The ends of a tied model made one gradient of their parts across two stages.
    TiedAcrossStages,
    /// A piece of a checkpoint could not be read, for no process ran on the machines that keep it.
    KeepersAway,
    /// A bit of a state flipped, and the holder that could have reported it was lost in the same
    /// step: nothing is promised then, and the life ends.
    WitnessLost,
    /// The run was held, because of something that a fault did; the life ends.
    Halted,
}

impl Marker {
    /// All markers, in the order of the report.
    pub const ALL: [Self; 68] = [
        Self::Clipped,
        Self::Skipped,
        Self::Replayed,
        Self::RolledBackTwice,
        Self::ClipAfterRollback,
        Self::RollbackDuringJoin,
        Self::LossDuringJoin,
        Self::LeaderLostBeforeBroadcast,
        Self::LateEntryIgnored,
        Self::FrameTwoGenerationsOld,
        Self::QuorumLostWithinAttempt,
        Self::SnapshotInstalled,
        Self::AllStagesMoved,
        Self::FewerStages,
        Self::MoreStages,
        Self::ReplannedWhileLoading,
        Self::RepeatedAsSealed,
        Self::CopyTookOver,
        Self::Rewound,
        Self::StateDiffered,
        Self::SumContradicted,
        Self::Quarantined,
        Self::OlderCheckpointUsed,
        Self::StaleDiskRefused,
        Self::TornTailCut,
        Self::DamagedDiskRefused,
        Self::PowerCycled,
        Self::RecoveredByForce,
        Self::HungNodeLost,
        Self::FencedNodeCameBack,
        Self::KeptLayersUsed,
        Self::Drained,
        Self::PlannedChange,
        Self::CopiedAhead,
        Self::JoinedWhileFollowing,
        Self::OwnerLostWhileFollowed,
        Self::FollowerLost,
        Self::TimedCheckpoint,
        Self::PairSurvived,
        Self::ManyStages,
        Self::WindowSwitched,
        Self::FormatRaised,
        Self::Stalled,
        Self::LateInventory,
        Self::LongLoad,
        Self::LongOperation,
        Self::LongWrite,
        Self::StuckNodeLost,
        Self::DriftReplanned,
        Self::DriftKept,
        Self::PipelinesAdded,
        Self::IslandsMixed,
        Self::PublishedAgain,
        Self::IslandFolderFailed,
        Self::SumsGathered,
        Self::CandidatesGathered,
        Self::ClippedCandidatesGathered,
        Self::PipelineLost,
        Self::Rerouted,
        Self::DrainRerouted,
        Self::PlaceSplit,
        Self::ShardRerouted,
        Self::PlaceGiven,
        Self::Unshared,
        Self::TiedAcrossStages,
        Self::KeepersAway,
        Self::WitnessLost,
        Self::Halted,
    ];

    /// Endings that a fault excuses: a test of nothing that would come after them.
    pub const EXCUSED: [Self; 2] = [Self::WitnessLost, Self::Halted];

    /// Those that few lives show as they are drawn. A campaign of lives with several pipelines does.
    pub const OF_PIPELINES: [Self; 3] =
        [Self::DrainRerouted, Self::PlaceSplit, Self::ShardRerouted];

    /// Those that must have been seen.
    pub fn expected() -> impl Iterator<Item = Self> {
        let is_left_out =
            |marker: &Self| Self::EXCUSED.contains(marker) || Self::OF_PIPELINES.contains(marker);
        Self::ALL.into_iter().filter(move |marker| !is_left_out(marker))
    }
}

/// How often each was seen.
pub type Markers = OccurrenceCounts<Marker>;
