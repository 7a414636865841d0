//! What comes of an answer.

use super::Notice;
use super::metadata_request::MetadataFault;

/// What a state machine decides after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PollOutcome {
    pub(super) notices: Vec<Notice>,
    pub(super) next: NextPoll,
}

/// When the next question is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextPoll {
    /// This look needs another request.
    AtOnce,
    /// This look is over.
    AfterPoll,
    /// This look has failed.
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
