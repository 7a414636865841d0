//! Requests of the API.

use serde::{Deserialize, Serialize};
use zbelastic_types::{Bytes, NodeId};

use super::hex::HexDigest;
use super::status::TokenRole;

/// A request, which reads or commands. Steps are counted from 1: step 1 is the first,
/// and a checkpoint of step 100 is the state after 100 steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum ApiRequest {
    /// The status of the cluster: members, job and plan.
    Status,
    /// Events, from a sequence number on. Answered at once, with nothing if there is nothing: a
    /// client that follows sends the request again.
    Events {
        /// The first that is requested; events older than the oldest kept are left out.
        from_sequence: u64,
        /// How many at most, up to [`EVENTS_MAX`](super::EVENTS_MAX).
        max: u32,
    },
    /// Lines that a node logged.
    Logs {
        /// The node; none for the one that receives the request.
        node: Option<NodeId>,
        /// The sequence number of the first line that is requested.
        from_sequence: u64,
        /// How many at most, up to [`LOG_LINES_MAX`](super::LOG_LINES_MAX).
        max: u32,
    },
    /// Creates a token with which nodes or clients join.
    TokenCreate(TokenRequest),
    /// Lists every token that is still recorded.
    TokenList,
    /// Revoke a token.
    TokenRevoke {
        /// The public id of the token.
        id: String,
        /// Whether nodes that joined with it go too.
        with_nodes: bool,
    },
    /// Drains a node.
    NodeDrain {
        /// The node that is to go.
        node: NodeId,
    },
    /// A node is not counted on any more, and its certificate is of no use.
    NodeRemove {
        /// The node that is removed.
        node: NodeId,
        /// Whether it is removed even if it is live.
        force: bool,
    },
    /// Trains this job, or continues it. Answered by `data_wanted` until the text is there.
    Run {
        /// The effective configuration as TOML.
        document: String,
        /// Length and hash of the text.
        corpus: CorpusDescription,
        /// The weights to begin with; without, they are drawn from the seed.
        #[serde(default)]
        weights: Option<CorpusDescription>,
        /// The name that it is to have; without, by its model's size.
        #[serde(default)]
        name: Option<String>,
        /// The run that it continues, from its last checkpoint; without, it begins at step 0.
        #[serde(default)]
        from: Option<String>,
    },
    /// Continues a run that is over from its last checkpoint, over the same data and with its
    /// configuration but for what changes. Answered like `run`.
    RunContinue {
        /// The name of the run that is continued.
        from: String,
        /// The keys that change, as TOML.
        changes: String,
        /// The name that the new run is to have; without, one like the other's.
        #[serde(default)]
        name: Option<String>,
    },
    /// Every run that is kept.
    RunList,
    /// Removes a run that ended, with its checkpoints.
    RunRemove {
        /// The name of the run.
        name: String,
        /// Its number, as it was shown to the client that removes it: another run may have the name
        /// by now.
        run: u64,
    },
    /// A piece of the text, in order.
    PutData {
        /// The hash of the complete text.
        hash: HexDigest,
        /// Where the piece begins.
        offset: u64,
        /// The piece: the message's body.
        #[serde(skip)]
        bytes: Vec<u8>,
    },
    /// Hold the run after the step under way.
    Pause,
    /// Continues a run that is paused.
    Resume,
    /// End the run for good; the last checkpoint that is durable by then is kept.
    Stop,
    /// Every checkpoint of a run.
    CheckpointList {
        /// Which run's; none for the newest.
        #[serde(default)]
        run: Option<String>,
    },
    /// One checkpoint, layer by layer.
    CheckpointShow {
        /// Which run's; none for the newest.
        #[serde(default)]
        run: Option<String>,
        /// The checkpoint's step: steps sealed before it.
        step: u64,
    },
    /// Read every copy of a layer, and compare.
    CheckpointVerify {
        /// Which run's; none for the newest.
        #[serde(default)]
        run: Option<String>,
        /// The checkpoint's step: steps sealed before it.
        step: u64,
        /// The layer, counted from 0.
        layer: u32,
    },
    /// Go back to a checkpoint; steps sealed after it are given up.
    CheckpointRestore {
        /// The checkpoint's step: steps sealed before it.
        step: u64,
    },
    /// Remove pieces that no checkpoint needs any more, on every node.
    CheckpointCollect,
    /// A piece of a layer's image.
    CheckpointExport {
        /// Which run's; none for the newest.
        #[serde(default)]
        run: Option<String>,
        /// The checkpoint's step: steps sealed before it.
        step: u64,
        /// The layer, counted from 0.
        layer: u32,
        /// Where the piece begins.
        offset: u64,
    },
    /// The chaining value of a subtree of the hash over a layer's image, behind its weights: by
    /// them the weights are proved without the moments.
    CheckpointSubtree {
        /// Which run's; none for the newest.
        #[serde(default)]
        run: Option<String>,
        /// The checkpoint's step: steps sealed before it.
        step: u64,
        /// The layer, counted from 0.
        layer: u32,
        /// Which, counted from the weights on.
        subtree: u32,
    },
    /// A piece of the operations of stages in the last steps, as the text of a trace file.
    Trace {
        /// Where the piece begins.
        offset: u64,
        /// The step, counted from 1, before which steps are left out if it is one of them; 0 for none.
        #[serde(default)]
        from: u64,
    },
    /// The cluster's name, format, leader and voters.
    ClusterInfo,
    /// Another authority replaces the one that issues; sent again, the answer reports how far that
    /// is.
    ClusterRotateCa {
        /// Whether the old one is retired without waiting for members that are away.
        force: bool,
    },
    /// A piece of the backup that a cluster is recovered from.
    ClusterBackup {
        /// Which backup: none begins a new one, and the answer has its digest.
        digest: Option<HexDigest>,
        /// Where the piece begins.
        offset: u64,
    },
}

impl ApiRequest {
    /// The name of this kind of request, for logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Events { .. } => "events",
            Self::Logs { .. } => "logs",
            Self::TokenCreate(_) => "token_create",
            Self::TokenList => "token_list",
            Self::TokenRevoke { .. } => "token_revoke",
            Self::NodeDrain { .. } => "node_drain",
            Self::NodeRemove { .. } => "node_remove",
            Self::Run { .. } => "run",
            Self::RunContinue { .. } => "run_continue",
            Self::PutData { .. } => "put_data",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Stop => "stop",
            Self::RunList => "run_list",
            Self::RunRemove { .. } => "run_remove",
            Self::CheckpointList { .. } => "checkpoint_list",
            Self::CheckpointShow { .. } => "checkpoint_show",
            Self::CheckpointVerify { .. } => "checkpoint_verify",
            Self::CheckpointRestore { .. } => "checkpoint_restore",
            Self::CheckpointCollect => "checkpoint_collect",
            Self::CheckpointExport { .. } => "checkpoint_export",
            Self::CheckpointSubtree { .. } => "checkpoint_subtree",
            Self::Trace { .. } => "trace",
            Self::ClusterInfo => "cluster_info",
            Self::ClusterRotateCa { .. } => "cluster_rotate_ca",
            Self::ClusterBackup { .. } => "cluster_backup",
        }
    }
}

/// The properties of a token that is to be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRequest {
    /// The role that it admits.
    pub role: TokenRole,
    /// How long it can be used.
    pub ttl_s: u64,
    /// How often it can be used.
    pub uses: u32,
    /// Whether nodes that join with it are removed when they are lost.
    pub ephemeral: bool,
    /// The note that its creator gives it.
    pub note: Option<String>,
}

/// The text of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorpusDescription {
    /// BLAKE3 of the bytes of the file.
    pub hash: HexDigest,
    /// Its length in bytes.
    pub length: Bytes,
}
