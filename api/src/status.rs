//! The state of the cluster, as `status` reports it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zbelastic_policy::long_activity::LongActivity;
use zbelastic_timing::commit_times::CommitLatency;
use zbelastic_types::{Bytes, NodeId};

use super::hex::HexDigest;

/// The state of the cluster, as one node knows it. Times of day are milliseconds since 1970; a
/// number that is not finite or not known is left out or `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of the program that answers.
    pub version: String,
    /// When the node answered, in milliseconds since 1970.
    pub at_ms: u64,
    /// The node that answered.
    pub answered_by: NodeId,
    /// The cluster's name and id.
    pub cluster: ClusterStatus,
    /// The leader, if there is one.
    pub leader: Option<NodeId>,
    /// The Raft term of the leader.
    pub term: u64,
    /// Whether anything can be decided.
    pub quorum: QuorumStatus,
    /// Members, lost ones included, in the order of their ids.
    pub members: Vec<MemberStatus>,
    /// The job that is trained, if there is one.
    pub job: Option<JobStatus>,
    /// The plan in force.
    pub plan: Option<PlanStatus>,
    /// How many nodes may be lost at once without losing a sealed step.
    pub promise: Option<PromiseStatus>,
    /// How long verdicts were waited for lately.
    pub verdict_wait: Option<VerdictWait>,
    /// How long entries took lately from the leader's append to their commit; if the answering node
    /// leads.
    #[serde(default)]
    pub commit_latency: Option<CommitLatencyStatus>,
    /// The recent times of work, as far as it was measured.
    pub pace: Option<PaceStatus>,
    /// The last failures, newest last; at most [`FAILURES_MAX`](super::FAILURES_MAX).
    pub failures: Vec<FailureStatus>,
    /// The durable checkpoints of the run, oldest first.
    pub checkpoints: Vec<CheckpointStatus>,
    /// The counts since the answering process started, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The name and id of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The name of the cluster.
    pub name: String,
    /// Its id, as certificates write it.
    pub id: String,
}

/// Whether anything can be decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumStatus {
    /// The controllers that vote.
    pub voters: Vec<NodeId>,
    /// Voters from which the answering node received something lately.
    pub reachable: Vec<NodeId>,
}

impl QuorumStatus {
    /// Voters that are needed.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// Whether enough are there.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.reachable.len() >= self.needed()
    }
}

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Votes on entries of the log.
    Controller,
    /// A worker, which runs a stage of a plan.
    Worker,
}

impl MemberRole {
    /// The name of the role.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for MemberRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The role that a token admits: a member, or a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenRole {
    /// A member that votes.
    Controller,
    /// A member that runs a stage.
    Worker,
    /// A command line that may change runs and checkpoints.
    Operator,
    /// A command line that may only read.
    Viewer,
}

impl TokenRole {
    /// The name of the role.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
        }
    }

    /// Whether it admits a command line rather than a member.
    #[must_use]
    pub const fn is_person(self) -> bool {
        match self {
            Self::Controller | Self::Worker => false,
            Self::Operator | Self::Viewer => true,
        }
    }
}

impl fmt::Display for TokenRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whether a member is present, draining or lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum MemberState {
    /// The member is counted on.
    Present,
    /// The member is draining.
    Draining,
    /// The member is lost.
    Lost {
        /// Why it is considered lost, in words.
        reason: String,
    },
}

/// The path of frames to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberPath {
    /// It is the answering node itself.
    Own,
    /// A QUIC connection over the network.
    Quic,
    /// A connection within the machine.
    SameHost,
    /// There is no connection.
    Down,
}

/// A member of the cluster, live or lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The node's number in the cluster.
    pub id: NodeId,
    /// The name of the node.
    pub name: String,
    /// Its role in the cluster.
    pub role: MemberRole,
    /// Whether it is present, draining or lost.
    pub standing: MemberState,
    /// Number of its incarnation.
    pub incarnation: u64,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// The zone that it runs in; empty if none was configured.
    #[serde(default)]
    pub zone: String,
    /// Its place in the pipeline, counted from 0; a standby has none.
    pub stage: Option<u32>,
    /// Layers it holds, as in `0-4`.
    pub layers: Option<String>,
    /// The stages that it keeps copies of layers for.
    pub copies_stages: Vec<u32>,
    /// The device that it computes on: `cpu`, or a device's model with the versions that bits
    /// depend on.
    pub device: String,
    /// Why it has no part in the job in any event, if that is so.
    #[serde(default)]
    pub left_out: Option<String>,
    /// How much faster it is than a core of the slowest kind, in thousandths.
    pub speed_permille: u32,
    /// Floating-point operations a second that it multiplies and adds at best, as it measured at its
    /// start; processors only. Workers with a stage that share a machine share what its cores reach.
    #[serde(default)]
    pub peak_flop_per_s: Option<u64>,
    /// Memory of its process that is resident, in bytes, as it reported last; none of a worker that
    /// computes on a device, whose memory is another.
    pub memory_used: Option<Bytes>,
    /// Memory that the plan in force counts on for its stage, in bytes; none where it has no stage, and
    /// with plans of very many operations.
    #[serde(default)]
    pub memory_planned: Option<Bytes>,
    /// Memory that it offers for training, in bytes.
    pub memory: Bytes,
    /// Milliseconds since anything was last received from it.
    pub last_heard_ms: Option<u64>,
    /// Round trip to it, in microseconds, as the connection estimates it; none within a machine.
    pub round_trip_us: Option<u64>,
    /// Entries of the leader's log that it is not known to have; for controllers, if the answering node
    /// leads.
    #[serde(default)]
    pub log_behind: Option<u64>,
    /// The path to it from the answering node.
    pub road: MemberPath,
    /// Its work, as it reported last.
    #[serde(default)]
    pub work: Option<WorkStatus>,
    /// The disk that its store of checkpoints lies on, as it reported last.
    #[serde(default)]
    pub disk: Option<DiskStatus>,
    /// How far it has read everything on that disk again, as it reported last.
    #[serde(default)]
    pub scrub: Option<ScrubStatus>,
}

/// The passes in which a member reads everything on its disk again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Bytes that the pass under way has read.
    pub done: Bytes,
    /// Bytes that it reads in all.
    pub total: Bytes,
    /// Pieces, texts and weights that it found damaged so far.
    pub corrupt: u64,
    /// The last pass that ended; none if none did.
    pub last: Option<ScrubPassStatus>,
}

/// A pass that read everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPassStatus {
    /// When it ended, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// Bytes that it read.
    pub total: Bytes,
    /// Pieces, texts and weights that it found damaged.
    pub corrupt: u64,
}

/// The free and total space on a member's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Bytes that it may still write.
    pub free: Bytes,
    /// Bytes of the disk.
    pub total: Bytes,
    /// Whether a checkpoint may not fit there.
    pub low: bool,
}

/// The amount of a worker's work, and the long activity it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkStatus {
    /// A count that grows with each operation that runs and each byte of a layer that arrives.
    pub done: u64,
    /// Its long activity beside the passes of steps.
    pub activity: Option<LongActivity>,
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobPhaseStatus {
    /// Steps run and are sealed.
    Running,
    /// It would run, and something is missing or under way.
    Waiting {
        /// The condition that the run waits for, in words.
        reason: String,
    },
    /// Paused by a command.
    Paused,
    /// Every step is sealed.
    Done,
    /// Stopped for good by a command.
    Stopped,
    /// Held because going on would be wrong.
    Halted {
        /// Why continuing would be wrong, in words.
        reason: String,
    },
}

impl JobPhaseStatus {
    /// Whether no further step follows without a command.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        match self {
            Self::Done | Self::Stopped | Self::Halted { .. } => true,
            Self::Running | Self::Waiting { .. } | Self::Paused => false,
        }
    }
}

/// The job that is trained, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name: the preset or the file it was configured by.
    pub name: String,
    /// Names the whole configuration and the text.
    pub config: HexDigest,
    /// How far it is.
    pub phase: JobPhaseStatus,
    /// Number of steps sealed so far.
    pub step: u64,
    /// Steps of the run.
    pub step_count: u64,
    /// The last sealed step's loss, in nats a token.
    pub loss: Option<f64>,
    /// The norm of the step's gradient.
    pub gnorm: Option<f64>,
    /// The learning rate of that step.
    pub lr: Option<f64>,
    /// Milliseconds that a step lasts lately.
    pub step_ms: Option<f64>,
    /// Tokens a second lately.
    pub tokens_per_s: Option<f64>,
    /// Floating-point operations of a token, forward and backward; none with bfloat16 on processors,
    /// whose peak is not measured.
    #[serde(default)]
    pub flop_per_token: Option<f64>,
    /// Seconds to the end.
    pub eta_s: Option<f64>,
    /// The digest of the state after the last step that every stage attested; at the end of the run
    /// that of the weights.
    pub digest: Option<HexDigest>,
    /// The step that `digest` is of.
    pub digest_step: Option<u64>,
    /// The newest checkpoint that is being written.
    #[serde(default)]
    pub saving: Option<SavingStatus>,
}

/// A checkpoint that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavingStatus {
    /// Steps sealed before it.
    pub step: u64,
    /// Layers of it that are durable.
    pub layers_durable: u32,
    /// Layers of the model.
    pub layers: u32,
}

/// One pipeline, as there was before there were several.
pub(crate) const fn one() -> u32 {
    1
}

/// The plan in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// The plan's generation number.
    pub generation: u64,
    /// The node at each stage, pipeline by pipeline.
    pub stages: Vec<NodeId>,
    /// Pipelines side by side.
    #[serde(default = "one")]
    pub replicas: u32,
    /// The name of the pipeline schedule.
    pub schedule: String,
    /// Steps that run ahead of their verdict: 0 or 1.
    pub window: u32,
    /// The share of a step in which the busiest stage waits, as planned with the times of passes that
    /// were measured up to the last step; none before a step of this plan.
    pub bubble_planned: Option<f64>,
    /// The same as measured lately.
    pub bubble_measured: Option<f64>,
    /// The step it began with.
    pub from_step: u64,
    /// Why it was made.
    pub reason: String,
    /// Whether its program runs, or the condition it waits for.
    pub waits_for: Option<String>,
}

/// Whether each update is held elsewhere before it is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PromiseStatus {
    /// It is, by as many other nodes as was configured.
    Kept {
        /// Nodes that may be lost at once without losing a sealed step.
        copies: u32,
    },
    /// It is, by every other node; those are fewer than was configured.
    Fewer {
        /// Nodes that may be lost at once without losing a sealed step.
        copies: u32,
        /// Number of other nodes that was configured.
        wanted: u32,
    },
    /// Updates are not held elsewhere.
    Off {
        /// Why updates are not held elsewhere, in words.
        reason: String,
    },
}

/// How long stages waited for verdicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictWait {
    /// The median over the last steps, in milliseconds.
    pub p50_ms: f64,
    /// The longest of the last steps, in milliseconds.
    pub max_ms: f64,
    /// Number of steps that were looked at.
    pub steps: u64,
}

/// How long entries of the log took from the leader's append to their commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitLatencyStatus {
    /// The median over the last appends, in milliseconds.
    pub p50_ms: f64,
    /// The longest of the last appends, in milliseconds.
    pub max_ms: f64,
    /// Number of appends that were looked at.
    pub appends: u64,
}

impl From<CommitLatency> for CommitLatencyStatus {
    fn from(latency: CommitLatency) -> Self {
        let CommitLatency { median, longest, count: appends } = latency;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Self { p50_ms: ms(median), max_ms: ms(longest), appends }
    }
}

/// The measured times of work, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaceStatus {
    /// By class of layers, those that were timed.
    pub layers: Vec<LayerPace>,
    /// Between nodes that exchange tensors of neighbouring stages.
    pub links: Vec<LinkPace>,
    /// From the last report to the verdict, if it was waited for.
    pub verdict_us: Option<f64>,
}

/// The time of a layer on a node of speed 1000, for a microbatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPace {
    /// `embed`, `attention`, `mlp` or `head`.
    pub layer: String,
    /// The forward pass, in microseconds.
    pub f_us: f64,
    /// The backward pass down to the layer's input, in microseconds.
    pub b_us: f64,
    /// The gradients of the layer's weights, in microseconds.
    pub w_us: f64,
    /// The update of a step.
    pub update_us: f64,
    /// Making its activations again, if that is done.
    pub recompute_us: Option<f64>,
}

/// The time of a boundary tensor between two nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkPace {
    /// The nodes, the lower number first.
    pub nodes: [NodeId; 2],
    /// The part that does not depend on the tensor's length, in microseconds.
    pub latency_us: f64,
    /// The part that depends on the tensor's length, in microseconds.
    pub occupancy_us: f64,
}

/// A node that was lost while a run was under way, and what followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailureStatus {
    /// When it was held for lost, in milliseconds since 1970.
    pub at_ms: u64,
    /// The node that was lost.
    pub node: NodeId,
    /// The name of the node.
    pub name: String,
    /// Why it is held for lost.
    pub reason: String,
    /// From the last sign of life to the decision, in milliseconds.
    pub detected_ms: Option<f64>,
    /// From the last seal before to the first one after, in milliseconds.
    pub next_seal_ms: Option<f64>,
    /// The generation that followed.
    pub generation: Option<u64>,
    /// Number of layers that moved to other nodes.
    pub layers_moved: u32,
    /// Bytes of layers that moved to other nodes.
    pub bytes_moved: Bytes,
    /// The fewest bytes that had to move, with the best assignment of nodes to stages.
    pub bytes_floor: Bytes,
    /// Sealed steps that were computed again.
    pub steps_lost: u64,
}

impl FailureStatus {
    /// The loss of a node, its name and why, after which nothing has happened yet.
    #[must_use]
    pub fn new(
        at_ms: u64,
        (node, name, reason): (NodeId, String, String),
        detected_ms: Option<f64>,
    ) -> Self {
        Self {
            at_ms,
            node,
            name,
            reason,
            detected_ms,
            next_seal_ms: None,
            generation: None,
            layers_moved: 0,
            bytes_moved: Bytes(0),
            bytes_floor: Bytes(0),
            steps_lost: 0,
        }
    }
}

/// A checkpoint of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// Steps sealed before it.
    pub step: u64,
    /// When it was complete.
    pub at_ms: Option<u64>,
    /// Bytes of one copy of it.
    pub bytes: Bytes,
    /// The digest of the whole state.
    pub digest: HexDigest,
    /// Nodes that hold at least one of its layers.
    pub holders: Vec<NodeId>,
    /// The fewest copies that any of its layers has.
    pub copies: u32,
}
