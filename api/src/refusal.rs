//! Why a node refuses a request.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::escape::escape;
use super::hex::HexDigest;

/// Why a node refuses a request. Each reason has its exit code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum ApiRefusal {
    /// The certificate of the sender does not allow this request.
    NotAuthorised {
        /// The request, in words.
        what: String,
    },
    /// The named object does not exist.
    NotFound {
        /// The kind of resource that was named.
        thing: ResourceKind,
        /// The name that was given.
        name: String,
    },
    /// Not possible in the present state.
    WrongState(WrongState),
    /// The request makes no sense.
    Malformed {
        /// The fault in it, in words.
        what: String,
    },
    /// The configuration cannot be run here.
    Config {
        /// The problems, in order.
        problems: Vec<String>,
    },
    /// A number is out of bounds.
    TooLarge {
        /// The quantity that is too large, in words.
        what: String,
        /// The number that was given.
        found: u64,
        /// The largest that is accepted.
        max: u64,
    },
    /// No space is left on disk or in memory.
    OutOfResource {
        /// The purpose of the space, and its place.
        what: String,
    },
    /// Bytes that were sent or read are damaged.
    Damaged {
        /// The damaged object, in words.
        what: String,
        /// The digest it should have.
        expected: HexDigest,
        /// The digest it has.
        found: HexDigest,
    },
    /// An error inside the node.
    Internal {
        /// The operation that failed, in words.
        what: String,
    },
}

/// The kind of a named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// A node of the cluster.
    Node,
    /// A token for joining.
    Token,
    /// A checkpoint of a run.
    Checkpoint,
    /// A layer of a checkpoint.
    Layer,
    /// A backup of the cluster that was begun.
    Backup,
    /// A text that was uploaded.
    Text,
    /// A run, live or ended.
    Run,
}

/// Whether there is a run at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAbsence {
    /// There never was one.
    Never,
    /// A run was stopped.
    Stopped,
}

/// Why something is not possible now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum WrongState {
    /// There is no run.
    NoRun {
        /// Whether there was one.
        was: RunAbsence,
    },
    /// Another run is under way.
    OtherRun {
        /// Digest of the other run's configuration.
        config: HexDigest,
        /// Number of steps it has sealed.
        step: u64,
        /// Number of steps it has in all.
        step_count: u64,
    },
    /// Another run is called so.
    NameTaken {
        /// The name that is in use.
        name: String,
    },
    /// As many runs that ended are kept as can be.
    TooManyRuns {
        /// How many that is.
        max: u64,
    },
    /// This run ended already, and its result is kept.
    Kept {
        /// The name of the run that ended.
        name: String,
    },
    /// The run is under way: it is not removed, and no run continues from it.
    RunLive {
        /// The name of the live run.
        name: String,
    },
    /// A run that branches off another has another model.
    OtherModel {
        /// The other run's name.
        name: String,
    },
    /// A run would end where it begins, or before.
    NoStepsLeft {
        /// The step behind which it begins.
        step: u64,
        /// Number of steps that the run would have.
        step_count: u64,
    },
    /// A run that is under way has no other beginning than the one that would be removed.
    RunNeeded {
        /// Name of the run that is under way.
        by: String,
    },
    /// The run is held already.
    Paused,
    /// The run is not held.
    NotPaused,
    /// Every step of the run is sealed.
    Done,
    /// The run is held because going on would be wrong.
    Halted {
        /// Why continuing would be wrong, in words.
        reason: String,
    },
    /// The node is live; it would have to drain first.
    NodeLive {
        /// The name of the node.
        name: String,
    },
    /// The node was lost or removed already.
    NodeGone {
        /// The name of the node.
        name: String,
        /// Why the node is considered lost, in words.
        reason: String,
    },
    /// Without this controller nothing could be decided any more.
    LastController {
        /// The name of the controller.
        name: String,
    },
    /// A controller has no layers to hand over.
    ControllerStays {
        /// The name of the controller.
        name: String,
    },
    /// The node is draining already.
    Draining {
        /// The name of the node.
        name: String,
    },
    /// The token is revoked already.
    TokenRevoked {
        /// The id by which the token is listed and revoked.
        id: String,
    },
    /// A piece does not follow the bytes that are there.
    OutOfOrder {
        /// Offset at which the next piece has to begin.
        expected: u64,
        /// Offset at which the received piece begins.
        found: u64,
    },
    /// The node has not caught up with the cluster yet.
    Starting,
    /// The program that sent the request is of another version.
    OtherVersion {
        /// The version of the node's program.
        node: String,
    },
}

impl ResourceKind {
    /// The noun for it in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Token => "token",
            Self::Checkpoint => "checkpoint",
            Self::Layer => "layer",
            Self::Backup => "backup",
            Self::Text => "text",
            Self::Run => "run",
        }
    }

    /// The command that lists those that exist.
    const fn listing(self) -> Option<&'static str> {
        match self {
            Self::Node => Some("`zbelastic node list` shows them all"),
            Self::Token => Some("`zbelastic token list` shows them all"),
            Self::Checkpoint | Self::Layer => Some("`zbelastic ckpt list` shows them all"),
            Self::Backup => Some("begin the backup again"),
            Self::Run => Some("`zbelastic runs list` shows them all"),
            Self::Text => None,
        }
    }
}

impl ApiRefusal {
    /// The exit code of a command that is refused for this reason.
    #[must_use]
    pub const fn code(&self) -> FailureCode {
        match self {
            Self::NotAuthorised { .. } => FailureCode::NotAuthorised,
            Self::NotFound { .. } => FailureCode::NotFound,
            Self::WrongState(_) => FailureCode::WrongState,
            Self::Malformed { .. } | Self::Config { .. } | Self::TooLarge { .. } => {
                FailureCode::Usage
            }
            Self::OutOfResource { .. } => FailureCode::OutOfResource,
            Self::Damaged { .. } => FailureCode::VerificationFailed,
            Self::Internal { .. } => FailureCode::Internal,
        }
    }

    /// The refusal as a failure that a command prints.
    #[must_use]
    pub fn failure(&self) -> CommandFailure {
        let hint = self.hint();
        let details = match self {
            Self::Config { problems } => {
                problems.iter().map(|problem| FailureDetail::new(escape(problem))).collect()
            }
            Self::NotAuthorised { .. }
            | Self::NotFound { .. }
            | Self::WrongState(_)
            | Self::Malformed { .. }
            | Self::TooLarge { .. }
            | Self::OutOfResource { .. }
            | Self::Damaged { .. }
            | Self::Internal { .. } => Vec::new(),
        };
        let mut failure = CommandFailure { code: self.code(), what: self.to_string(), details };
        if let Some((what, hint)) = hint {
            failure.details.push(FailureDetail::new(what).hint(hint));
        }
        failure
    }

    /// An explanation and a hint for some refusals.
    fn hint(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::NotAuthorised { .. } => Some((
                "the certificate that was shown does not allow it",
                "--data-dir with the folder of whoever ran `zbelastic init`, or of an operator",
            )),
            Self::NotFound { thing, .. } => {
                thing.listing().map(|listing| ("the cluster has no such resource", listing))
            }
            Self::WrongState(state) => state.hint(),
            Self::OutOfResource { .. } => {
                Some(("nothing was changed", "free space there, or `zbelastic ckpt gc --yes`"))
            }
            Self::Malformed { .. }
            | Self::Config { .. }
            | Self::TooLarge { .. }
            | Self::Damaged { .. }
            | Self::Internal { .. } => None,
        }
    }
}

impl WrongState {
    fn hint(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::NoRun { .. } => {
                Some(("nothing is trained on this cluster", "zbelastic run CONFIG"))
            }
            Self::OtherRun { .. } => Some((
                "a cluster trains one configuration at a time",
                "`zbelastic stop --yes` ends it and keeps what it has trained; `zbelastic run CONFIG --from NAME` goes \
                 on from there",
            )),
            Self::NameTaken { .. } => Some((
                "what a run made is kept under its name until it is removed",
                "`zbelastic run --from NAME` goes on from it; another --name begins anew; or `zbelastic runs \
                 remove`",
            )),
            Self::TooManyRuns { .. } => Some((
                "each of them is kept with its last checkpoint until it is removed",
                "`zbelastic runs list`, then `zbelastic runs remove RUN --yes`",
            )),
            Self::Kept { .. } => Some((
                "it was trained with the same configuration over the same text",
                "`zbelastic export` writes its model; `zbelastic run --from NAME` goes on, with more --steps if it is \
                 done; with another --name it is trained again",
            )),
            Self::RunLive { .. } => {
                Some(("it has steps left", "`zbelastic stop --yes` ends it first"))
            }
            Self::OtherModel { .. } => Some((
                "weights and moments are those of its layers",
                "the same keys of [model]; or begin from step 0, without --from",
            )),
            Self::NoStepsLeft { .. } => Some((
                "steps are counted from the beginning of the first run",
                "a greater train.steps",
            )),
            Self::RunNeeded { .. } => Some((
                "it began there, and has no checkpoint of its own",
                "again behind its first checkpoint, or `zbelastic stop --yes` ends it",
            )),
            Self::Paused => Some(("it was paused by a command", "zbelastic resume")),
            Self::NotPaused => Some((
                "it goes on",
                "`zbelastic status`; what goes back is paused first: `zbelastic pause`",
            )),
            Self::Done => Some((
                "there is no step left",
                "`zbelastic run --from` it, with a greater train.steps",
            )),
            Self::Halted { .. } => Some((
                "the nodes disagree, and training on could hide it",
                "`zbelastic events`, then `zbelastic ckpt restore`",
            )),
            Self::NodeLive { .. } => {
                Some(("a live node is drained, so that nothing is lost", "zbelastic node drain"))
            }
            Self::LastController { .. } => Some((
                "too few controllers would be left to decide anything",
                "first join another with --role controller",
            )),
            Self::ControllerStays { .. } => Some((
                "a controller has no layers to hand over",
                "`zbelastic leave` on its machine, then `zbelastic node remove`",
            )),
            Self::Draining { .. } => Some((
                "it goes as soon as others have what it holds",
                "`zbelastic events -f`, or `zbelastic node remove --force --yes`",
            )),
            Self::Starting => Some(("it reads what was agreed before", "again in a moment")),
            Self::OtherVersion { .. } => {
                Some(("they would misunderstand each other", "the same version on both sides"))
            }
            Self::TokenRevoked { .. } => Some((
                "nobody joins with it; who joined before is let in",
                "`zbelastic token revoke --with-nodes` removes those too",
            )),
            Self::NodeGone { .. } | Self::OutOfOrder { .. } => None,
        }
    }
}

impl fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAuthorised { what } => write!(f, "not authorised: {}", escape(what)),
            Self::NotFound { thing, name } => {
                write!(f, "there is no {} {}", thing.name(), escape(name))
            }
            Self::WrongState(state) => state.fmt(f),
            Self::Malformed { what } => {
                write!(f, "the node does not accept this: {}", escape(what))
            }
            Self::Config { problems } => match problems.len() {
                1 => write!(f, "the cluster cannot run this configuration"),
                count => write!(f, "the cluster cannot run this configuration for {count} reasons"),
            },
            Self::TooLarge { what, found, max } => {
                write!(f, "{}: {found}, at most {max}", escape(what))
            }
            Self::OutOfResource { what } => write!(f, "out of space: {}", escape(what)),
            Self::Damaged { what, expected, found } => {
                write!(f, "{} is damaged: digest {found}, expected {expected}", escape(what))
            }
            Self::Internal { what } => write!(f, "the node failed: {}", escape(what)),
        }
    }
}

impl fmt::Display for WrongState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRun { was: RunAbsence::Never } => write!(f, "there is no run"),
            Self::NoRun { was: RunAbsence::Stopped } => write!(f, "the run was stopped"),
            Self::OtherRun { config, step, step_count } => write!(
                f,
                "another run is under way: {} at step {step} of {step_count}",
                config.short()
            ),
            Self::NameTaken { name } => {
                write!(f, "there is a run called {} already", escape(name))
            }
            Self::TooManyRuns { max } => {
                write!(f, "{max} runs that ended are kept, which is the most")
            }
            Self::Kept { name } => {
                write!(f, "run {} is this one and has ended; its checkpoint is kept", escape(name))
            }
            Self::RunLive { name } => write!(f, "run {} is under way", escape(name)),
            Self::OtherModel { name } => write!(f, "run {} has another model", escape(name)),
            Self::NoStepsLeft { step, step_count } => {
                write!(f, "{step_count} steps, and the run begins behind step {step}")
            }
            Self::RunNeeded { by } => write!(f, "run {} continues from it", escape(by)),
            Self::Paused => write!(f, "the run is paused already"),
            Self::NotPaused => write!(f, "the run is not paused"),
            Self::Done => write!(f, "the run is done"),
            Self::Halted { reason } => write!(f, "the run is halted: {}", escape(reason)),
            Self::NodeLive { name } => write!(f, "node {} is live", escape(name)),
            Self::NodeGone { name, reason } => {
                write!(f, "node {} is gone already: {}", escape(name), escape(reason))
            }
            Self::LastController { name } => {
                write!(f, "node {} is a controller that cannot be missed", escape(name))
            }
            Self::ControllerStays { name } => {
                write!(f, "node {} is a controller, and only workers are drained", escape(name))
            }
            Self::Draining { name } => write!(f, "node {} is draining already", escape(name)),
            Self::TokenRevoked { id } => write!(f, "token {} is revoked already", escape(id)),
            Self::OutOfOrder { expected, found } => {
                write!(f, "a piece from byte {found}, expected one from byte {expected}")
            }
            Self::Starting => write!(f, "the node is starting"),
            Self::OtherVersion { node } => write!(
                f,
                "the node runs version {}, this program is {}",
                escape(node),
                env!("CARGO_PKG_VERSION")
            ),
        }
    }
}
