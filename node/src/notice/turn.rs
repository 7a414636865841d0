//! What comes of an answer.

use super::Notice;
use super::question::AskFault;

/// What a state machine decides after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) notices: Vec<Notice>,
    pub(super) next: Next,
}

/// When the next question is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This look needs another request.
    AtOnce,
    /// This look is over.
    AfterPoll,
    /// This look has failed.
    AfterFault(AskFault),
}

impl Turn {
    pub(super) fn silent(next: Next) -> Self {
        Self { notices: Vec::new(), next }
    }

    pub(super) fn failed(fault: AskFault) -> Self {
        Self::silent(Next::AfterFault(fault))
    }

    pub(super) fn at_once() -> Self {
        Self::silent(Next::AtOnce)
    }
}
