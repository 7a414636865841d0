//! Whether a majority of the controllers is lost, as events report it.

use zbelastic_consensus::training_status::TrainingStatus;

/// Without a leader for so long, the loss of the quorum is reported as an event.
const LEADERLESS_TICKS_MAX: u32 = 200;

/// What became of the quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuorumChange {
    /// There was no leader for longer than elections take.
    Lost,
    /// There is a leader again.
    Held,
}

/// Whether the loss of the quorum was reported last.
#[derive(Debug, Default)]
pub struct QuorumWatch {
    is_lost: bool,
}

impl QuorumWatch {
    /// A tick passed. Yields the change to record, if the quorum is lost or back.
    pub fn note(&mut self, status: &TrainingStatus) -> Option<QuorumChange> {
        let is_lost = matches!(
            status,
            TrainingStatus::NoQuorum { ticks } if *ticks >= LEADERLESS_TICKS_MAX
        );
        if is_lost == self.is_lost {
            return None;
        }
        self.is_lost = is_lost;
        Some(if is_lost { QuorumChange::Lost } else { QuorumChange::Held })
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
        assert_eq!(note(LEADERLESS_TICKS_MAX), Some(QuorumChange::Lost));
        assert_eq!(note(LEADERLESS_TICKS_MAX + 1), None);
        assert_eq!(note(0), Some(QuorumChange::Held));
        assert_eq!(note(1), None);
    }
}
