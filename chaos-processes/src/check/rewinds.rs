//! When a run went back, as far as event files show, and the differences that this excuses: steps
//! that were sealed before it under one plan, and after it under another. A run that goes back
//! excuses nothing that it does later, or did before.

use super::NodeLog;
use crate::events::NodeEventKind;

/// The run went back once, as one file shows it. Each file has its own rewinds; they need not be
/// matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedRewind {
    /// Steps that were left.
    to_step: u64,
    /// The plan before it.
    from: u64,
    /// The plan after it.
    then: u64,
}

/// The part of a rewind that was read so far.
struct OpenRewind {
    to_step: u64,
    /// The last plan that the process wrote before, if it wrote any.
    from: Option<u64>,
}

impl OpenRewind {
    /// With the plan that was written next. A process that begins with the rewind wrote no plan
    /// before it, and one that dies with it none after: then they are assumed to follow each other.
    fn close(self, then: Option<u64>) -> Option<LoggedRewind> {
        let Self { to_step, from } = self;
        let from = from.or_else(|| then.map(|then| then.saturating_sub(1)))?;
        Some(LoggedRewind { to_step, from, then: then.unwrap_or(from + 1) })
    }
}

/// All rewinds that a file holds.
pub(super) fn rewinds_of(log: &NodeLog<'_>) -> Vec<LoggedRewind> {
    let mut found = Vec::new();
    let mut open = Vec::<OpenRewind>::new();
    let mut last = None;
    for event in log.events {
        match &event.kind {
            NodeEventKind::Rewound { to_step } => {
                open.push(OpenRewind { to_step: *to_step, from: last })
            }
            NodeEventKind::Started { .. } => {
                found.extend(open.drain(..).filter_map(|open| open.close(None)));
                last = None;
            }
            NodeEventKind::Plan { generation, .. } => {
                found.extend(open.drain(..).filter_map(|open| open.close(Some(*generation))));
                last = Some(*generation);
            }
            NodeEventKind::Seal(seal) => {
                found.extend(open.drain(..).filter_map(|open| open.close(Some(seal.generation))));
                last = Some(seal.generation);
            }
            NodeEventKind::Leader { .. }
            | NodeEventKind::Joined { .. }
            | NodeEventKind::Lost { .. }
            | NodeEventKind::Running(_)
            | NodeEventKind::Halted { .. }
            | NodeEventKind::Done { .. }
            | NodeEventKind::Other
            | NodeEventKind::Checkpoint { .. }
            | NodeEventKind::Torn { .. } => {}
        }
    }
    found.extend(open.into_iter().filter_map(|open| open.close(None)));
    found
}

/// The first two plans of a step, in order, that no rewind lies between which went back before the
/// step.
pub(super) fn unexcused(
    step: u64,
    generations: &[u64],
    rewinds: &[LoggedRewind],
) -> Option<(u64, u64)> {
    let is_excused = |one: u64, two: u64| {
        rewinds.iter().any(|LoggedRewind { to_step, from, then }| {
            *to_step < step && *from < two && *then > one
        })
    };
    generations
        .iter()
        .zip(generations.iter().skip(1))
        .map(|(one, two)| (*one, *two))
        .find(|(one, two)| !is_excused(*one, *two))
}
