//! The outcome of one answer of a poll.

use super::Notice;
use super::metadata_request::MetadataFault;

/// The decision of a state machine after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PollOutcome {
    pub(super) notices: Vec<Notice>,
    pub(super) next: NextPoll,
}

/// When the next request is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextPoll {
    /// This poll needs another request.
    AtOnce,
    /// This poll is over.
    AfterPoll,
    /// This poll has failed.
    AfterFault(MetadataFault),
}

impl PollOutcome {
    pub(super) fn silent(next: NextPoll) -> Self {
        Self { notices: Vec::new(), next }
    }

    pub(super) fn failed(fault: MetadataFault) -> Self {
        Self::silent(NextPoll::AfterFault(fault))
    }

    pub(super) fn at_once() -> Self {
        Self::silent(NextPoll::AtOnce)
    }
}
