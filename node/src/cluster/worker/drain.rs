//! How a worker goes: on a signal, on a notice of the cloud, or because no controller is left to
//! complete that.

use zbelastic_preemption::{Notice, NoticeCause};

use crate::cluster::process_exit::{ALONE_TIMEOUT, NodeSignal};
use zbelastic_config::NoticePolicy;
use zbelastic_policy::drain_cause::DrainCause;
use zbelastic_policy::tick::ticks_of;

/// The reaction to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainAction {
    /// The worker leaves at once, without handing over any layer.
    Leave,
    /// The worker begins to drain.
    Begin(DrainCause),
}

/// Whether a worker drains, and for which cause.
#[derive(Default)]
pub(super) struct DrainWatch {
    cause: Option<DrainCause>,
    /// Ticks without a connection to any controller, while it drains.
    alone_ticks: u32,
    /// The notice that it drains for.
    notice: Option<Notice>,
}

impl DrainWatch {
    /// The cause for which it drains, if it does.
    pub(super) const fn cause(&self) -> Option<DrainCause> {
        self.cause
    }

    /// The notice for which it drains, if it does.
    pub(super) const fn notice(&self) -> Option<&Notice> {
        self.notice.as_ref()
    }

    /// A signal to drain, or to leave at once; a second one to drain means that too.
    pub(super) fn note_signal(&mut self, signal: NodeSignal) -> DrainAction {
        match (signal, self.cause) {
            (NodeSignal::Now, _) | (NodeSignal::Drain(_), Some(_)) => DrainAction::Leave,
            (NodeSignal::Drain(cause), None) => {
                self.cause = Some(cause);
                DrainAction::Begin(cause)
            }
        }
    }

    /// A notice of the cloud. Yields the signal that it amounts to, if it does.
    pub(super) fn note_notice(
        &mut self,
        notice: &Notice,
        policy: NoticePolicy,
    ) -> Option<NodeSignal> {
        match (notice.cause, policy) {
            (NoticeCause::Preempted | NoticeCause::Maintenance, NoticePolicy::Drain) => {
                if self.cause.is_some() {
                    return None;
                }
                self.notice = Some(notice.clone());
                Some(NodeSignal::Drain(DrainCause::Notice))
            }
            // It may happen to this machine sooner than to others: nothing is lost by waiting.
            (NoticeCause::Rebalance, NoticePolicy::Drain) | (_, NoticePolicy::Ignore) => None,
        }
    }

    /// A tick passed. Yields whether a draining worker is long connected to no controller: none
    /// hands its layers over.
    pub(super) fn is_alone(&mut self, is_controller_connected: bool) -> bool {
        if self.cause.is_none() || is_controller_connected {
            self.alone_ticks = 0;
            return false;
        }
        self.alone_ticks += 1;
        self.alone_ticks > ticks_of(ALONE_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERSON: NodeSignal = NodeSignal::Drain(DrainCause::Person);

    #[test]
    fn a_second_signal_to_drain_ends_a_worker_at_once() {
        let mut drain = DrainWatch::default();
        assert_eq!(drain.note_signal(PERSON), DrainAction::Begin(DrainCause::Person));
        assert_eq!(drain.cause(), Some(DrainCause::Person));
        assert_eq!(drain.note_signal(PERSON), DrainAction::Leave);
        assert_eq!(DrainWatch::default().note_signal(NodeSignal::Now), DrainAction::Leave);
    }

    #[test]
    fn a_draining_worker_waits_for_a_controller_as_long_as_elections_take() {
        let mut drain = DrainWatch::default();
        let ticks = ticks_of(ALONE_TIMEOUT);
        assert!((0..2 * ticks).all(|_| !drain.is_alone(false)), "it does not drain");
        drain.note_signal(PERSON);
        assert!((0..ticks).all(|_| !drain.is_alone(false)));
        assert!(!drain.is_alone(true));
        assert!((0..ticks).all(|_| !drain.is_alone(false)), "it counts anew");
        assert!(drain.is_alone(false));
    }
}
