//! How a node's process ends, and the signals that end it.

use std::time::Duration;

use zbelastic_consensus::core::FatalCause;
use zbelastic_identity::PeerRole;
use zbelastic_policy::drain_cause::DrainCause;
use zbelastic_policy::trust::{is_outdated, is_refused_removal};
use zbelastic_transport::DialProblem;
use zbelastic_types::{NodeId, Step};

use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

/// A draining worker that is connected to no controller for so long exits: longer than an
/// election and a restart last.
pub const ALONE_TIMEOUT: Duration = Duration::from_secs(10);

/// A signal of the system or of an operator to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSignal {
    /// Drain. The second time it is [`Self::Now`].
    Drain(DrainCause),
    /// Exit at once, without handing over any layer.
    Now,
}

/// How the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// It handed over its layers, and left.
    Drained(DrainCause),
    /// It drained, and was connected to no controller that could have completed that.
    Alone,
    /// A controller left, and workers that drained with it saved no checkpoint of the newest step.
    Unsaved(Step),
    /// It left at once, on request.
    Left,
    /// An operation hangs, and only the end of the process ends it.
    Hung,
    /// Another process with this identity is running.
    Duplicate {
        /// The node that met both processes.
        reported_by: NodeId,
    },
    /// The cluster does not admit this node any more.
    Removed,
    /// The disk of this controller's log is full.
    LogFull,
    /// Disk, memory or device cannot be had.
    OutOfResource(String),
    /// A part of the process ended or failed.
    Lost(String),
    /// A newer program wrote the agreed entries.
    Newer(String),
}

impl ProcessExit {
    /// Puts an exit in the place of the one before, if there is one.
    pub(super) fn put(place: &mut Option<Self>, exit: Option<Self>) {
        *place = exit.or(place.take());
    }

    /// How a controller with a core that cannot continue ends.
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

    /// How a node ends that a peer refuses, if that is final.
    #[must_use]
    pub fn of_refusal(node: NodeId, role: PeerRole, problem: &DialProblem) -> Option<Self> {
        if is_outdated(role, problem) {
            let message = format!("the cluster has newer programs: of node {node}, {problem}");
            return Some(Self::Newer(message));
        }
        is_refused_removal(role, problem).then_some(Self::Removed)
    }

    /// The failure that is reported; `None` if it ended well.
    #[must_use]
    pub fn failure(self) -> Option<CommandFailure> {
        let (code, message, detail) = match self {
            Self::Drained(cause) if !cause.is_taken_away() => return None,
            Self::Drained(_) => (
                FailureCode::Drained,
                "drained: nothing was lost, and this node may be started again".to_owned(),
                None,
            ),
            Self::Alone => (
                FailureCode::Drained,
                format!(
                    "no controller was reached for {} s: nothing was handed over",
                    ALONE_TIMEOUT.as_secs()
                ),
                Some(
                    FailureDetail::new("what checkpoints it wrote lie in its folder")
                        .hint("start the controllers, then this node with the same command"),
                ),
            ),
            Self::Unsaved(step) => (
                FailureCode::Drained,
                format!("left: workers that drained saved no checkpoint of step {step}"),
                Some(FailureDetail::new("start it again, then the workers in their folders")),
            ),
            Self::Left => (FailureCode::Interrupted, "left at once, on request".to_owned(), None),
            Self::Hung => (
                FailureCode::Drained,
                "an operation hung and the cluster continued without this node".to_owned(),
                Some(FailureDetail::new("start it again with the same command")),
            ),
            Self::Duplicate { reported_by } => (
                FailureCode::WrongState,
                format!(
                    "another process with this node's identity is running, as node {reported_by} reports"
                ),
                Some(
                    FailureDetail::new("a data folder serves one process")
                        .why("the folder was copied, or an older process still runs")
                        .hint("stop the other one, or join with a new token and an empty folder"),
                ),
            ),
            Self::Removed => (
                FailureCode::NotAuthorised,
                "the cluster does not admit this node any more".to_owned(),
                Some(
                    FailureDetail::new(
                        "it was removed, or its token was for ephemeral nodes and it left",
                    )
                    .hint("join with a new token and an empty folder"),
                ),
            ),
            Self::LogFull => (
                FailureCode::OutOfResource,
                "the log cannot be written: its disk, or this user's share of it, is full"
                    .to_owned(),
                Some(
                    FailureDetail::new("what was agreed is whole in --data-dir")
                        .hint("free space there, then start it again with the same command"),
                ),
            ),
            Self::OutOfResource(message) => (FailureCode::OutOfResource, message, None),
            Self::Lost(message) => (FailureCode::Internal, message, None),
            Self::Newer(message) => (
                FailureCode::WrongState,
                message,
                Some(
                    FailureDetail::new("the data is untouched")
                        .hint("the version of the program that the other controllers run"),
                ),
            ),
        };
        let mut failure = CommandFailure::new(code, message);
        failure.details.extend(detail);
        Some(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_without_space_for_its_log_says_what_to_do() {
        let failure = ProcessExit::LogFull.failure().expect("it failed");
        assert_eq!(failure.code, FailureCode::OutOfResource);
        let text = failure.to_string();
        assert!(text.contains("try: free space there, then start it again"), "{text}");
    }
}
