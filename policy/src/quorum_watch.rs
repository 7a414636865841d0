//! Whether a majority of the controllers is lost, or writes nothing, as events report it.

use zbelastic_consensus::training_status::TrainingStatus;

/// Without a leader for so long, the loss of the quorum is reported as an event.
const LEADERLESS_TICKS_MAX: u32 = 200;

/// What became of the quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuorumChange {
    /// There was no leader for longer than elections take, or it agreed on nothing for longer than slow
    /// disks write.
    Lost,
    /// There is a leader again, and entries are agreed on.
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
        let is_lost = match status {
            TrainingStatus::NoQuorum { ticks } => *ticks >= LEADERLESS_TICKS_MAX,
            TrainingStatus::NotAgreed { .. } => true,
            TrainingStatus::NoJob
            | TrainingStatus::Paused
            | TrainingStatus::Halted(_)
            | TrainingStatus::Saving { .. }
            | TrainingStatus::Done
            | TrainingStatus::Stopped
            | TrainingStatus::WaitingForWorkers { .. }
            | TrainingStatus::NoPlan(_)
            | TrainingStatus::Planning { .. }
            | TrainingStatus::Loading { .. }
            | TrainingStatus::Running { .. } => false,
        };
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
        let unwritten = TrainingStatus::NotAgreed { ticks: 500, behind: Vec::new() };
        assert_eq!(watch.note(&unwritten), Some(QuorumChange::Lost), "a majority of disks hangs");
        assert_eq!(watch.note(&TrainingStatus::NoJob), Some(QuorumChange::Held));
    }
}
