//! How a node's process ends, and what the system or a person wants of it.

use std::fmt;
use std::time::Duration;

use zbelastic_consensus::core::FatalCause;
use zbelastic_policy::trust::{is_outdated, is_refused_removal};
use zbelastic_transport::{DialProblem, PeerRole};
use zbelastic_types::NodeId;

use crate::failure::{CommandFailure, FailureCode, FailureDetail};

/// A worker that is to go in order and is connected to no controller for so long goes: longer than an
/// election and a restart take.
pub const ALONE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a node is to go in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainCause {
    /// A person ordered it: it is not to come back.
    Person,
    /// The system takes the machine away: the node should be started again elsewhere.
    Preempted,
}

impl fmt::Display for DrainCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Person => "by order",
            Self::Preempted => "the machine is being taken away",
        })
    }
}

/// What the system or a person wants of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSignal {
    /// Go in order. The second time it is [`Self::Now`].
    Drain(DrainCause),
    /// Go at once, without handing anything over.
    Now,
}

/// How the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// It gave away what it had, and went.
    Drained(DrainCause),
    /// It was to go in order, and was connected to no controller that could have seen to that.
    Alone,
    /// It went at once, by order.
    Left,
    /// An operation hangs, and only the end of the process ends it.
    Hung,
    /// Another process with this identity lives.
    Duplicate {
        /// The node that met both processes.
        reported_by: NodeId,
    },
    /// The cluster does not let this node in any more.
    Removed,
    /// Disk, memory or device cannot be had.
    OutOfResource(String),
    /// Something within the process is gone or wrong.
    Lost(String),
    /// A newer program wrote what was agreed on.
    Newer(String),
}

impl ProcessExit {
    /// How a controller ends whose core cannot go on.
    #[must_use]
    pub fn of_fatal(cause: &FatalCause) -> Self {
        match cause {
            FatalCause::Log(reason) => {
                Self::Lost(format!("this node's log cannot be used any more: {reason:?}"))
            }
            FatalCause::Version(error) => {
                Self::Newer(format!("what is agreed cannot be read by this version: {error}"))
            }
            FatalCause::OtherCluster { expected, found } => {
                Self::Lost(format!("the log is cluster {found}'s, this node belongs to {expected}"))
            }
        }
    }

    /// How a node ends that a peer does not let in, if that is for good.
    #[must_use]
    pub fn of_refusal(node: NodeId, role: PeerRole, problem: &DialProblem) -> Option<Self> {
        if is_outdated(role, problem) {
            let what = format!("the cluster has newer programs: of node {node}, {problem}");
            return Some(Self::Newer(what));
        }
        is_refused_removal(role, problem).then_some(Self::Removed)
    }

    /// The failure that is reported; `None` if it ended well.
    #[must_use]
    pub fn failure(self) -> Option<CommandFailure> {
        let (code, what, detail) = match self {
            Self::Drained(DrainCause::Person) => return None,
            Self::Drained(DrainCause::Preempted) => (
                FailureCode::Drained,
                "drained: nothing was lost, and this node may be started again".to_owned(),
                None,
            ),
            Self::Alone => (
                FailureCode::Drained,
                format!(
                    "no controller was heard for {} s: nothing was handed over",
                    ALONE_TIMEOUT.as_secs()
                ),
                Some(
                    FailureDetail::new("what checkpoints it wrote lie in its folder")
                        .hint("start the controllers, then this node with the same command"),
                ),
            ),
            Self::Left => (FailureCode::Interrupted, "went at once, by order".to_owned(), None),
            Self::Hung => (
                FailureCode::Drained,
                "an operation hung and the cluster went on without this node".to_owned(),
                Some(FailureDetail::new("start it again with the same command")),
            ),
            Self::Duplicate { reported_by: told_by } => (
                FailureCode::WrongState,
                format!("another process with this node's identity lives, node {told_by} says"),
                Some(
                    FailureDetail::new("a data folder serves one process")
                        .why("the folder was copied, or an older process still runs")
                        .hint("stop the other one, or join with a new token and an empty folder"),
                ),
            ),
            Self::Removed => (
                FailureCode::NotAuthorised,
                "the cluster does not let this node in any more".to_owned(),
                Some(
                    FailureDetail::new("it was removed, or its certificate was revoked")
                        .hint("join with a new token and an empty folder"),
                ),
            ),
            Self::OutOfResource(what) => (FailureCode::OutOfResource, what, None),
            Self::Lost(what) => (FailureCode::Internal, what, None),
            Self::Newer(what) => (
                FailureCode::WrongState,
                what,
                Some(
                    FailureDetail::new("the data is untouched")
                        .hint("the version of the program that the other controllers run"),
                ),
            ),
        };
        let mut failure = CommandFailure::new(code, what);
        failure.details.extend(detail);
        Some(failure)
    }
}
