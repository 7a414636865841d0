//! Events beside steps: what curves are marked with, and the lists of decisions and of members.

use serde::Serialize;
use zbelastic_api::{ClusterEvent, EventKind};

/// Marks that are kept: a fleet of 1,000 spot machines at a loss a minute fills this in a day.
pub const MARKS_KEPT: usize = 2_000;

/// Kinds of marks. The page colours by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// An update was skipped.
    Skip,
    /// A step was run again.
    Replay,
    /// The run went back to a checkpoint.
    Rewind,
    /// A plan was adopted.
    Plan,
    /// A plan's program runs.
    Running,
    /// A member joined.
    Joined,
    /// A member was lost.
    Lost,
    /// A member drains.
    Draining,
    /// A checkpoint is durable.
    Checkpoint,
    /// A leader was elected, or there is none.
    Leader,
    /// Too few voters are there, or enough are there again.
    Quorum,
    /// The run began, was paused, was continued, or ended.
    Run,
    /// A warning.
    Warning,
}

impl MarkKind {
    /// The kind of an event; `None` for those that neither curves nor lists show.
    #[must_use]
    pub fn of(kind: &EventKind) -> Option<Self> {
        match kind {
            EventKind::Rollback { verdict, .. } if verdict == "skip" => Some(Self::Skip),
            EventKind::Rollback { .. } => Some(Self::Replay),
            EventKind::Rewound { .. } => Some(Self::Rewind),
            EventKind::Plan { .. } => Some(Self::Plan),
            EventKind::Running { .. } => Some(Self::Running),
            EventKind::Joined { .. } => Some(Self::Joined),
            EventKind::Lost { .. } => Some(Self::Lost),
            EventKind::Draining { .. } => Some(Self::Draining),
            EventKind::Checkpoint { .. } => Some(Self::Checkpoint),
            EventKind::Leader { .. } => Some(Self::Leader),
            EventKind::QuorumLost | EventKind::QuorumHeld => Some(Self::Quorum),
            EventKind::RunStarted { .. }
            | EventKind::Paused { .. }
            | EventKind::Resumed { .. }
            | EventKind::Stopped { .. }
            | EventKind::Halted { .. }
            | EventKind::Done { .. } => Some(Self::Run),
            EventKind::Violation { .. } | EventKind::Warning { .. } => Some(Self::Warning),
            EventKind::Started { .. }
            | EventKind::Step { .. }
            | EventKind::HeldOut { .. }
            | EventKind::FormatRaised { .. }
            | EventKind::TokenCreated { .. }
            | EventKind::TokenRevoked { .. }
            | EventKind::Other => None,
        }
    }
}

/// A mark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PageMark {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The step it belongs to: that of the event, else the last one that was sealed before it; `None` if
    /// that is a step of an earlier run.
    pub step: Option<u64>,
    /// Its kind.
    pub kind: MarkKind,
    /// The member that it concerns, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// The event in words, as the reporting node puts it.
    pub text: String,
}

impl PageMark {
    /// The mark of an event, if it has one; `sealed` is the last step that was sealed before it.
    #[must_use]
    pub fn of(event: &ClusterEvent, sealed: u64) -> Option<Self> {
        let kind = MarkKind::of(&event.kind)?;
        Some(Self {
            at_ms: event.at_ms,
            step: step_of(&event.kind).or(Some(sealed)),
            kind,
            member: member_of(&event.kind).map(str::to_owned),
            text: event.text.clone(),
        })
    }
}

/// The step that an event names.
fn step_of(kind: &EventKind) -> Option<u64> {
    if let EventKind::Rollback { step, .. }
    | EventKind::Checkpoint { step, .. }
    | EventKind::Rewound { to_step: step, .. } = kind
    {
        return Some(*step);
    }
    None
}

/// The member that an event names.
fn member_of(kind: &EventKind) -> Option<&str> {
    if let EventKind::Joined { name, .. }
    | EventKind::Lost { name, .. }
    | EventKind::Draining { name, .. } = kind
    {
        return Some(name);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(kind: EventKind) -> Option<PageMark> {
        PageMark::of(&ClusterEvent::new(1, 5, kind), 40)
    }

    #[test]
    fn a_mark_stands_at_the_step_of_its_event_or_at_the_last_one_sealed() {
        let reason = || "not finite".to_owned();
        let skip = EventKind::Rollback { step: 7, verdict: "skip".to_owned(), reason: reason() };
        let skip = mark(skip).expect("a mark");
        assert_eq!((skip.kind, skip.step), (MarkKind::Skip, Some(7)));
        let replay =
            EventKind::Rollback { step: 8, verdict: "replay".to_owned(), reason: reason() };
        let replay = mark(replay).expect("a mark");
        assert_eq!((replay.kind, replay.step), (MarkKind::Replay, Some(8)));
        let rewind = mark(EventKind::Rewound { to_step: 30, reason: reason() }).expect("a mark");
        assert_eq!((rewind.kind, rewind.step), (MarkKind::Rewind, Some(30)));
        let quorum = mark(EventKind::QuorumLost).expect("a mark");
        assert_eq!((quorum.kind, quorum.step, quorum.member), (MarkKind::Quorum, Some(40), None));
        assert_eq!(mark(EventKind::Other), None);
    }
}
