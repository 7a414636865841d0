//! Answers of a node to API requests.

use serde::{Deserialize, Serialize};
use zbelastic_types::{Bytes, NodeId};

use super::event::ClusterEvent;
use super::hex::HexDigest;
use super::refusal::ApiRefusal;
use super::status::{
    CheckpointStatus, JobPhaseStatus, JobStatus, MemberStatus, StatusReport, TokenRole,
};

/// The answer of a node to a [`ApiRequest`](super::ApiRequest).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", content = "content", rename_all = "snake_case")]
pub enum ApiAnswer {
    /// The answer to `status`: the state of the cluster.
    Status(Box<StatusReport>),
    /// The answer to `events`: a page of events.
    Events(EventPage),
    /// The answer to `logs`: a page of log lines.
    Logs(LogPage),
    /// The answer to `token_create`: the new token.
    Token(TokenCreated),
    /// The answer to `token_list`: all tokens.
    Tokens(Vec<TokenInfo>),
    /// To `token_revoke`, `node_drain` and `node_remove`: the changes, and the nodes they concern.
    Done(ChangeSummary),
    /// To `run`: it begins or continues.
    Run(RunAccepted),
    /// To `run` while text is missing, and to `put_data`: how much is there.
    DataWanted(UploadProgress),
    /// To `pause`, `resume`, `stop` and `checkpoint_restore`: the job afterwards.
    Job(Box<JobStatus>),
    /// To `run_list`: oldest first.
    Runs(Vec<RunStatus>),
    /// The answer to `checkpoint_list`: all checkpoints.
    Checkpoints(Vec<CheckpointStatus>),
    /// The answer to `checkpoint_show`: one checkpoint with its layers.
    Checkpoint(CheckpointDetail),
    /// The answer to `checkpoint_verify`: one verified layer.
    Verified(LayerVerified),
    /// The answer to `checkpoint_collect`: the chunks that each node removed.
    Collected(Vec<CollectionReport>),
    /// The answer to `checkpoint_export`: a piece of a layer.
    Layer(LayerPiece),
    /// To `checkpoint_subtree`: the chaining value.
    Subtree(HexDigest),
    /// The answer to `trace`: a piece of the trace.
    Trace(TracePiece),
    /// The answer to `cluster_info`: the identity of the cluster.
    Cluster(Box<ClusterInfo>),
    /// The answer to `cluster_backup`: a piece of the backup.
    Backup(BackupPiece),
    /// Another node decides: send the request there.
    Redirect {
        /// Where it is reached; none if that is not known.
        addresses: Vec<String>,
    },
    /// No leader can decide: too few controllers are reachable.
    NoQuorum {
        /// Milliseconds without a leader.
        since_ms: u64,
        /// Names of the voters that are not reachable.
        missing: Vec<String>,
    },
    /// The node refused the request, for this reason.
    Refused(ApiRefusal),
}

impl ApiAnswer {
    /// The name of this kind of answer, for errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::Events(_) => "events",
            Self::Logs(_) => "logs",
            Self::Token(_) => "token",
            Self::Tokens(_) => "tokens",
            Self::Done(_) => "done",
            Self::Run(_) => "run",
            Self::DataWanted(_) => "data_wanted",
            Self::Job(_) => "job",
            Self::Runs(_) => "runs",
            Self::Checkpoints(_) => "checkpoints",
            Self::Checkpoint(_) => "checkpoint",
            Self::Verified(_) => "verified",
            Self::Collected(_) => "collected",
            Self::Layer(_) => "layer",
            Self::Subtree(_) => "subtree",
            Self::Trace(_) => "trace",
            Self::Cluster(_) => "cluster",
            Self::Backup(_) => "backup",
            Self::Redirect { .. } => "redirect",
            Self::NoQuorum { .. } => "no_quorum",
            Self::Refused(_) => "refused",
        }
    }
}

/// Events of a node's log, in the order of their sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventPage {
    /// Names the log, which is one node's: another number means that sequence numbers restart.
    pub log: u64,
    /// The oldest that is kept.
    pub first_sequence: u64,
    /// The sequence number to request next.
    pub next_sequence: u64,
    /// In the order of their sequence.
    pub events: Vec<ClusterEvent>,
}

/// Log lines of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogPage {
    /// The node that logged the lines.
    pub node: NodeId,
    /// The oldest that is kept.
    pub first_sequence: u64,
    /// The sequence number to request next.
    pub next_sequence: u64,
    /// In the order of their sequence.
    pub lines: Vec<LogLine>,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Grows by one with each line of the node's process.
    pub sequence: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The text of the log line, without its time.
    pub text: String,
}

/// A new token. Only its hash is kept: the token itself is in no later answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCreated {
    /// The token itself, as text.
    pub token: String,
    /// The description of the token.
    pub info: TokenInfo,
    /// Where a node that has it can join.
    pub addresses: Vec<String>,
}

/// The description of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// The id by which the token is listed and revoked.
    pub id: String,
    /// The role that it admits.
    pub role: TokenRole,
    /// When it was made.
    pub created_ms: u64,
    /// When the token expires, in milliseconds since 1970.
    pub expires_ms: u64,
    /// How often it could be used.
    pub uses: u32,
    /// How often it was.
    pub used: u32,
    /// Whether nodes that join with it are removed when they are lost.
    pub ephemeral: bool,
    /// Whether it was revoked.
    pub revoked: bool,
    /// The note that its creator gave it.
    pub note: Option<String>,
}

/// The changes that a command about nodes or tokens made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeSummary {
    /// The change in words.
    pub what: String,
    /// The nodes that the change concerns.
    pub nodes: Vec<NodeId>,
}

/// How a submitted run was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunDisposition {
    /// The run begins with this request.
    Started,
    /// It was under way already.
    Attached,
    /// It was paused, and continues.
    Continued,
    /// Every step of it is sealed.
    Done,
}

/// A run that is kept: the one under way, or one that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// Its number, in the order of their beginnings.
    pub run: u64,
    /// The name of the run, unique in the cluster.
    pub name: String,
    /// Digest of the run's configuration.
    pub config: HexDigest,
    /// How far it is.
    pub phase: JobPhaseStatus,
    /// Steps sealed; of a run before the newest those of its last checkpoint.
    pub step: u64,
    /// Number of steps it has in all.
    pub step_count: u64,
    /// The run that it branched off, if it did.
    #[serde(default)]
    pub from: Option<OriginStatus>,
    /// Its checkpoints, by their steps.
    pub checkpoints: Vec<u64>,
    /// The digest of the last of them.
    pub digest: Option<HexDigest>,
    /// Bytes of one copy of a checkpoint.
    pub bytes: Bytes,
}

/// Where a run branched off another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginStatus {
    /// The number of the other run.
    pub run: u64,
    /// Its name, unless it was removed.
    pub name: Option<String>,
    /// The step after which it continues.
    pub step: u64,
    /// The digest of the state there.
    pub digest: HexDigest,
}

/// A run that was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunAccepted {
    /// How it was handled.
    pub disposition: RunDisposition,
    /// The first event that concerns it, for a client that follows the run.
    pub events_from: u64,
    /// The state of the run's job.
    pub job: JobStatus,
}

/// How much of a text is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadProgress {
    /// BLAKE3 hash of the text or of the weights.
    pub hash: HexDigest,
    /// Bytes that are there: where the next piece begins.
    pub held: u64,
}

/// A checkpoint, layer by layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointDetail {
    /// As in the list.
    pub summary: CheckpointStatus,
    /// The effective configuration of the run, as TOML.
    pub document: String,
    /// The text of the run.
    pub corpus: HexDigest,
    /// The hash of what made its tokens, of bytes too; none of an older program.
    #[serde(default)]
    pub tokenizer: Option<HexDigest>,
    /// The id that ends a text in its token stores.
    #[serde(default)]
    pub end_of_text: Option<u32>,
    /// Layers in model order.
    pub layers: Vec<LayerDetail>,
}

/// A layer of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerDetail {
    /// Index of the layer in the model, from 0.
    pub layer: u32,
    /// The digest of its state.
    pub digest: HexDigest,
    /// Bytes of its image.
    pub bytes: Bytes,
    /// Nodes that hold a copy of it.
    pub holders: Vec<NodeId>,
}

/// The condition of the copies of a layer, found by reading them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerVerified {
    /// The checkpoint's step: steps sealed before it.
    pub step: u64,
    /// Index of the layer, counted from 0.
    pub layer: u32,
    /// Each copy, and its condition, found by reading it.
    pub copies: Vec<LayerCopyStatus>,
}

/// A copy of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerCopyStatus {
    /// The node that holds the copy.
    pub node: NodeId,
    /// Whether the copy is sound, damaged or missing.
    #[serde(flatten)]
    pub state: CopyState,
}

/// How a copy is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum CopyState {
    /// Every bit is right.
    Sound {
        /// Bytes that were read.
        bytes: Bytes,
    },
    /// The copy is damaged.
    Damaged {
        /// The damaged object, in words.
        what: String,
    },
    /// The node does not answer, or does not have it.
    Missing {
        /// Why the copy could not be read, in words.
        what: String,
    },
}

/// The chunks that a node removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionReport {
    /// The node that removed them.
    pub node: NodeId,
    /// Number of chunks that were removed.
    pub chunks: u64,
    /// Bytes that were freed.
    pub bytes: Bytes,
    /// Bytes that were freed of damaged stores that had been put aside.
    #[serde(default)]
    pub aside_bytes_removed: Bytes,
    /// Bytes of such stores that stay, until all checkpoints are newer than the store in their place.
    #[serde(default)]
    pub aside_bytes_kept: Bytes,
    /// Why it did not, or not all of it, if it did not.
    pub error: Option<String>,
}

/// A piece of a layer's image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPiece {
    /// Bytes of the image.
    pub total: u64,
    /// Where the piece begins.
    pub offset: u64,
    /// The piece: the message's body.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// A piece of a trace file's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracePiece {
    /// Bytes of the text; none if nothing was measured.
    pub total: u64,
    /// Where the piece begins.
    pub offset: u64,
    /// The piece: the message's body.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// The answer to `cluster_info`: the cluster's name, format, leader and voters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The name of the cluster, as people call it.
    pub name: String,
    /// Its id, as certificates write it.
    pub id: String,
    /// When it was founded.
    pub founded_ms: Option<u64>,
    /// The hash of its authority's certificate, as tokens carry it.
    pub authority: String,
    /// The last change of the authority, if there was one.
    #[serde(default)]
    pub rotation: Option<RotationStatus>,
    /// The version of the program that answers.
    pub version: String,
    /// The format of its log.
    #[serde(default)]
    pub format: FormatStatus,
    /// The leader; none while there is none, or it is not known.
    pub leader: Option<NodeId>,
    /// The Raft term of the leader.
    pub term: u64,
    /// Entries agreed on so far.
    pub committed: u64,
    /// The controllers that vote.
    pub voters: Vec<MemberStatus>,
    /// Voters that may be lost, with decisions still being made.
    pub failures_tolerated: u32,
}

/// The format of a cluster's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatStatus {
    /// The one that entries and snapshots are written in; 0 if the answering program does not
    /// report it.
    pub agreed: u8,
    /// Members that hold back a newer one, which the answering program reads: their programs do not
    /// read it, or they are away.
    pub held_back_by: Vec<NodeId>,
}

/// How far a change of the authority is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationStatus {
    /// The hash of the new authority's key, as tokens carry it.
    pub authority: String,
    /// How far it is.
    pub progress: RotationProgress,
    /// Members that it waits for, by name.
    pub waits_for: Vec<String>,
    /// Until when the holders of other certificates have time, in milliseconds since 1970.
    pub people_until_ms: Option<u64>,
}

/// The phases of a change of the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotationProgress {
    /// Both are trusted, the old one issues.
    Announced,
    /// Both are trusted, the new one issues.
    Issuing,
    /// The new one alone is trusted.
    Retired,
}

/// A piece of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupPiece {
    /// BLAKE3 of the whole backup.
    pub digest: HexDigest,
    /// Bytes of the whole backup.
    pub total: u64,
    /// Where the piece begins.
    pub offset: u64,
    /// The piece: the message's body.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}
