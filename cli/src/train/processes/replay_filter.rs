//! Leaves out events that a restarted controller sends once more: it reads its log from the
//! beginning, and sends all of it as if it happened now.

use zbelastic_api::EventKind;

/// How far a run's events were reported.
#[derive(Debug, Default)]
pub struct ReplayFilter {
    /// Whether the next events may have been reported before the controller's restart.
    is_replaying: bool,
    step: u64,
    generation: u64,
    running: u64,
    checkpoint: u64,
}

impl ReplayFilter {
    /// The controller was restarted, and sends its events from the beginning.
    pub fn begin(&mut self) {
        self.is_replaying = true;
    }

    /// Whether this event was not reported before. From the first new one on, all are new.
    pub fn is_new(&mut self, kind: &EventKind) -> bool {
        let numbered = match kind {
            EventKind::Step { step, .. } => Some((&mut self.step, *step)),
            EventKind::Plan { generation, .. } => Some((&mut self.generation, *generation)),
            EventKind::Running { generation, .. } => Some((&mut self.running, *generation)),
            EventKind::Checkpoint { step, .. } => Some((&mut self.checkpoint, *step)),
            EventKind::Started { .. }
            | EventKind::Leader { .. }
            | EventKind::Joined { .. }
            | EventKind::Draining { .. }
            | EventKind::Lost { .. }
            | EventKind::RunStarted { .. }
            | EventKind::Paused { .. }
            | EventKind::Resumed { .. }
            | EventKind::Stopped { .. }
            | EventKind::Halted { .. }
            | EventKind::Done { .. }
            | EventKind::HeldOut { .. }
            | EventKind::Rollback { .. }
            | EventKind::Rewound { .. }
            | EventKind::QuorumLost
            | EventKind::QuorumHeld
            | EventKind::FormatRaised { .. }
            | EventKind::TokenCreated { .. }
            | EventKind::TokenRevoked { .. }
            | EventKind::Violation { .. }
            | EventKind::Warning { .. }
            | EventKind::Other => None,
        };
        if let Some((last, found)) = numbered {
            self.is_replaying &= found <= *last;
            if !self.is_replaying {
                *last = found;
            }
        }
        // Text that was held out and warnings are no part of a log.
        !self.is_replaying || matches!(kind, EventKind::HeldOut { .. } | EventKind::Warning { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_types::Bytes;

    fn checkpoint(step: u64) -> EventKind {
        EventKind::Checkpoint { step, bytes: Bytes(1), ms: None }
    }

    fn running(generation: u64) -> EventKind {
        EventKind::Running {
            generation,
            layers_moved: 0,
            bytes_moved: Bytes(0),
            bytes_floor: Bytes(0),
            moved_ms: None,
            pause_ms: None,
        }
    }

    fn rewound() -> EventKind {
        EventKind::Rewound { to_step: 2, reason: "lost".to_owned() }
    }

    #[test]
    fn what_another_log_repeats_is_reported_once() {
        let mut filter = ReplayFilter::default();
        let new = |filter: &mut ReplayFilter, kinds: &[EventKind]| -> Vec<bool> {
            kinds.iter().map(|kind| filter.is_new(kind)).collect()
        };
        let first = [running(1), checkpoint(4), rewound(), running(2), checkpoint(4)];
        assert_eq!(new(&mut filter, &first), [true; 5]);
        filter.begin();
        assert_eq!(new(&mut filter, &first), [false; 5]);
        let warning = EventKind::Warning { what: "a disk is full".to_owned() };
        let kinds = [EventKind::QuorumHeld, warning, checkpoint(8), rewound(), checkpoint(4)];
        assert_eq!(new(&mut filter, &kinds), [false, true, true, true, true]);
    }
}
