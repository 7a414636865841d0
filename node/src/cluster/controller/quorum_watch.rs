//! Whether a majority of the controllers is lost, as events report it.

use zbelastic_consensus::training_status::TrainingStatus;

use zbelastic_api::EventKind;

/// Without a leader for so long, the loss of the quorum is reported as an event.
const LEADERLESS_TICKS_MAX: u32 = 200;

/// Whether the loss of the quorum was reported last.
#[derive(Debug, Default)]
pub(super) struct QuorumWatch {
    is_lost: bool,
}

impl QuorumWatch {
    /// A tick passed. Yields the event to record, if the quorum is lost or back.
    pub(super) fn note(&mut self, status: &TrainingStatus) -> Option<EventKind> {
        let is_lost = matches!(
            status,
            TrainingStatus::NoQuorum { ticks } if *ticks >= LEADERLESS_TICKS_MAX
        );
        if is_lost == self.is_lost {
            return None;
        }
        self.is_lost = is_lost;
        Some(if is_lost { EventKind::QuorumLost } else { EventKind::QuorumHeld })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_quorum_is_reported_once_after_elections_had_their_time_and_once_when_it_is_back() {
        let mut watch = QuorumWatch::default();
        let mut note = |ticks| watch.note(&TrainingStatus::NoQuorum { ticks });
        assert_eq!(note(LEADERLESS_TICKS_MAX - 1), None);
        assert_eq!(note(LEADERLESS_TICKS_MAX), Some(EventKind::QuorumLost));
        assert_eq!(note(LEADERLESS_TICKS_MAX + 1), None);
        assert_eq!(note(0), Some(EventKind::QuorumHeld));
        assert_eq!(note(1), None);
    }
}
