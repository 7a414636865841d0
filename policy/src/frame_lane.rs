//! The lane of a message to another worker: what a pass waits for is queued behind no gradient, and
//! gradients for a follower are dropped before they fill memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::runtime::PeerBody;
use zbelastic_types::NodeId;

/// Turns whose gradients are not sent to a follower yet: one on its way, and the next. Those of each
/// turn are as large as the stage's gradient.
const TURNS_UNSENT_MAX: usize = 2;

/// Messages that keep their order among each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameLane {
    /// What a pass or a plan waits for.
    Pass {
        /// Whether a device may still be at work on its numbers, so that the sender waits for them.
        is_on_device: bool,
    },
    /// Gradients for copies: none may be dropped.
    Copy,
    /// Gradients for a worker that copies layers ahead of a planned change.
    Follower {
        /// The turn that they were computed in.
        turn: Turn,
    },
}

/// The lane of a message.
#[must_use]
pub fn lane(body: &PeerBody) -> FrameLane {
    match body {
        PeerBody::Gradients { .. } => FrameLane::Copy,
        PeerBody::StandbyUpdate { turn, .. } => FrameLane::Follower { turn: *turn },
        PeerBody::Frame(frame) => FrameLane::Pass { is_on_device: frame.tensor.is_on_device() },
        PeerBody::StandbyLayer { image, .. } => {
            FrameLane::Pass { is_on_device: image.is_on_device() }
        }
        PeerBody::Prefix(_)
        | PeerBody::Partial(_)
        | PeerBody::Layer(_)
        | PeerBody::Fetch { .. }
        | PeerBody::StandbyRequest { .. } => FrameLane::Pass { is_on_device: false },
    }
}

/// Held with a message until it was sent, or dropped.
#[derive(Debug)]
pub struct UnsentMessage {
    _of_turn: Arc<()>,
}

/// The turns whose gradients were not sent to a follower yet.
#[derive(Debug, Default)]
pub struct UnsentTurns {
    /// Shared with the messages of each.
    unsent: BTreeMap<(NodeId, Turn), Arc<()>>,
}

impl UnsentTurns {
    /// Admits a message with gradients of a turn; `None` if it is to be dropped, because those of
    /// `TURNS_UNSENT_MAX` other turns wait to be sent to this node.
    #[must_use]
    pub fn admit(&mut self, to: NodeId, turn: Turn) -> Option<UnsentMessage> {
        self.unsent.retain(|_, messages| Arc::strong_count(messages) > 1);
        let others = self.unsent.keys().filter(|key| key.0 == to && key.1 != turn);
        (others.count() < TURNS_UNSENT_MAX).then(|| {
            let of_turn = self.unsent.entry((to, turn)).or_default();
            UnsentMessage { _of_turn: Arc::clone(of_turn) }
        })
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Attempt, Generation, Step};

    use super::*;

    #[test]
    fn two_turns_wait_for_each_node_with_all_their_messages() {
        let mut turns = UnsentTurns::default();
        let mut admit = |node: u64, step: u64| {
            let turn = Turn { generation: Generation(1), attempt: Attempt(0), step: Step(step) };
            turns.admit(NodeId(node), turn)
        };
        let first = [admit(1, 4), admit(1, 4)];
        let second = admit(1, 5);
        assert!(first.iter().chain([&second]).all(Option::is_some));
        assert!(admit(1, 6).is_none() && admit(1, 5).is_some() && admit(2, 6).is_some());
        drop(first);
        let third = admit(1, 6);
        assert!(third.is_some() && admit(1, 7).is_none());
    }
}
