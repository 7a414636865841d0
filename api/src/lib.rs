//! Requests of commands to a node, and the node's answers.
//!
//! One request, one answer. A message is a head of JSON and a body of plain bytes:
//!
//! ```text
//! "zbe1" | length of the head, u32 little-endian | head | body
//! ```
//!
//! The body is empty but where text, layers or backups travel, in pieces of at most
//! [`PIECE_BYTES_MAX`]. Text from a node is printed nowhere without escaping its control characters
//! ([`escape`]). Field names of heads are those that `--json` prints; `docs/cli.md` is their
//! contract.
//!
//! This module uses no socket and decides nothing: [`client`] sends through a function it is given,
//! and the node's side answers from its own state.

mod answer;
pub mod client;
mod escape;
mod event;
mod failure_log;
mod hex;
mod reason;
mod refusal;
mod reported_entries;
mod request;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
mod status;
#[cfg(test)]
mod tests;
mod token_info;
mod wire;

pub use answer::{
    ApiAnswer, BackupPiece, ChangeSummary, CheckpointDetail, ClusterInfo, CollectionReport,
    CopyState, EventPage, FormatStatus, LayerCopyStatus, LayerDetail, LayerPiece, LayerVerified,
    LogLine, LogPage, OriginStatus, RotationProgress, RotationStatus, RunAccepted, RunDisposition,
    RunStatus, TokenCreated, TokenInfo, TracePiece, UploadProgress,
};
pub use escape::escape;
pub use event::{ClusterEvent, EventKind};
pub use failure_log::FailureLog;
pub use hex::HexDigest;
pub use reason::{reason_text, rewind_text};
pub use refusal::{ApiRefusal, ResourceKind, RunAbsence, WrongState};
pub use reported_entries::ReportedEntries;
pub use request::{ApiRequest, CorpusDescription, TokenRequest};
pub use status::{
    CheckpointStatus, ClusterStatus, CommitLatencyStatus, DiskStatus, FailureStatus,
    JobPhaseStatus, JobStatus, LayerPace, LinkPace, MemberPath, MemberRole, MemberState,
    MemberStatus, PaceStatus, PlanStatus, PromiseStatus, QuorumStatus, SavingStatus,
    ScrubPassStatus, ScrubStatus, StatusReport, TokenRole, VerdictWait, WorkStatus,
};
pub use zbelastic_policy::long_activity::LongActivity;
pub use zbelastic_timing::StepTimeBreakdown;

pub use token_info::{token_info, token_infos, token_role};
pub use wire::{WireError, decode_answer, decode_request, encode_answer, encode_request};

/// Most bytes of a body: a piece of text, of a layer or of a backup.
pub const PIECE_BYTES_MAX: usize = 512 << 10;
/// Layers of checkpoints that one command reads at once, each piece by piece. Of another one a node
/// reads each chunk again for every piece of it.
pub const LAYERS_READ_MAX: usize = 4;
/// Most bytes of a request: the limit of transport.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a request's head: the rest is a piece.
pub const REQUEST_HEAD_BYTES_MAX: usize = REQUEST_BYTES_MAX - PIECE_BYTES_MAX - 8;
/// Most bytes of an answer's head. A status with every member, failure and checkpoint there may be
/// fills less than a quarter; an answer full of events and one full of log lines fit too.
pub const ANSWER_HEAD_BYTES_MAX: usize = 4 << 20;
/// Most bytes of an answer.
pub const ANSWER_BYTES_MAX: usize = 8 + ANSWER_HEAD_BYTES_MAX + PIECE_BYTES_MAX;
/// Most bytes of a configuration that is submitted; in JSON, line ends and quotes need two.
pub const DOCUMENT_BYTES_MAX: usize = 128 << 10;
/// Most bytes of a name of a node or a cluster, and of a note.
pub const NAME_BYTES_MAX: usize = 64;
/// Most events in an answer.
pub const EVENTS_MAX: u32 = 512;
/// Most log lines in an answer.
pub const LOG_LINES_MAX: u32 = 512;
/// Most failures a status remembers.
pub const FAILURES_MAX: usize = 8;
/// Most addresses in an answer, and in a list that is typed.
pub const ADDRESSES_MAX: usize = 16;
/// Most uses of a token.
pub const TOKEN_USES_MAX: u32 = zbelastic_consensus::access::TOKEN_USES_MAX;
