//! The lane of a message to another worker: what a pass waits for is queued behind no gradient, and
//! gradients for a follower are left out before they fill memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::elastic::LayerGradient;
use zbelastic_trainer::runtime::PeerBody;
use zbelastic_types::{Generation, LayerId, NodeId};

/// Turns whose gradients are not sent to a follower yet: one on its way, and the next. Those of each
/// turn are as large as the stage's gradient. Of a further turn those of half of the layers are
/// sent, of the one behind it those of a quarter: less than three turns wait in all.
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
    Follower,
    /// What replicas and ends of the model exchange of a gradient, or of candidates: none may be dropped, and that
    /// of one step may be more than the queue to a peer holds.
    Exchange,
}

/// The lane of a message.
#[must_use]
pub fn lane(body: &PeerBody) -> FrameLane {
    match body {
        PeerBody::Gradients { .. } => FrameLane::Copy,
        PeerBody::StandbyUpdate { .. } => FrameLane::Follower,
        PeerBody::Frame(frame) => FrameLane::Pass { is_on_device: frame.tensor.is_on_device() },
        PeerBody::StandbyLayer { image, .. } => {
            FrameLane::Pass { is_on_device: image.is_on_device() }
        }
        PeerBody::Partial(_) => FrameLane::Exchange,
        PeerBody::Prefix(_)
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

/// The gradients that were not sent to followers yet.
#[derive(Debug, Default)]
pub struct UnsentTurns {
    /// Shared with the messages of each.
    unsent: BTreeMap<(NodeId, Turn), Arc<()>>,
    /// Layers of which a follower lacks a gradient of the plan in force. Those behind it are of no use
    /// there, until the layer is sent anew.
    left_out: BTreeSet<(Generation, NodeId, LayerId)>,
}

impl UnsentTurns {
    /// Admits a message, with the gradients that are sent of it; `None` if nothing of it is.
    ///
    /// While gradients of `TURNS_UNSENT_MAX` other turns wait to be sent to a follower, the way there
    /// carries less than a step's gradients in a step. Then half of its layers get no gradients any
    /// more: it keeps up with the others, and fetches these when the plan begins.
    #[must_use]
    pub fn admit(
        &mut self,
        to: NodeId,
        body: &mut PeerBody,
    ) -> Option<(FrameLane, Option<UnsentMessage>)> {
        let lane = lane(body);
        match body {
            PeerBody::StandbyUpdate { turn, gradients, .. } => {
                let unsent = self.admit_gradients(to, *turn, gradients)?;
                return Some((lane, Some(unsent)));
            }
            PeerBody::StandbyLayer { open, image } => {
                self.left_out.remove(&(open.generation, to, image.layer()));
            }
            PeerBody::Gradients { .. }
            | PeerBody::Frame(_)
            | PeerBody::Prefix(_)
            | PeerBody::Partial(_)
            | PeerBody::Layer(_)
            | PeerBody::Fetch { .. }
            | PeerBody::StandbyRequest { .. } => {}
        }
        Some((lane, None))
    }

    fn admit_gradients(
        &mut self,
        to: NodeId,
        turn: Turn,
        gradients: &mut Vec<Arc<LayerGradient>>,
    ) -> Option<UnsentMessage> {
        self.unsent.retain(|_, messages| Arc::strong_count(messages) > 1);
        let generation = turn.generation;
        self.left_out.retain(|(of, ..)| *of == generation);
        gradients.retain(|gradient| !self.left_out.contains(&(generation, to, gradient.layer)));
        let others = self.unsent.keys().filter(|key| key.0 == to && key.1 != turn).count();
        if others >= TURNS_UNSENT_MAX && !self.unsent.contains_key(&(to, turn)) {
            let floats: usize = gradients.iter().map(|gradient| gradient.g.len()).sum();
            let mut kept = 0;
            let is_first_half = |gradient: &&Arc<LayerGradient>| {
                kept += gradient.g.len();
                2 * kept <= floats
            };
            let count = gradients.iter().take_while(is_first_half).count();
            let left_out =
                gradients.drain(count..).map(|gradient| (generation, to, gradient.layer));
            self.left_out.extend(left_out);
        }
        (!gradients.is_empty()).then(|| {
            let of_turn = self.unsent.entry((to, turn)).or_default();
            UnsentMessage { _of_turn: Arc::clone(of_turn) }
        })
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_trainer::elastic::LayerImage;
    use zbelastic_types::{Attempt, Step};

    use super::*;

    fn turn(step: u64) -> Turn {
        Turn { generation: Generation(1), attempt: Attempt(0), step: Step(step) }
    }

    fn update(step: u64, layers: &[u32]) -> PeerBody {
        let gradient = |layer: &u32| {
            let g = vec![0.0; 4].into();
            Arc::new(LayerGradient { layer: LayerId(*layer), turn: turn(step), g })
        };
        let gradients = layers.iter().map(gradient).collect();
        PeerBody::StandbyUpdate { turn: turn(step), before: None, gradients }
    }

    /// The layers whose gradients are sent, and what is held until they were.
    fn admit(
        turns: &mut UnsentTurns,
        node: u64,
        mut body: PeerBody,
    ) -> (Vec<u32>, Option<UnsentMessage>) {
        match (turns.admit(NodeId(node), &mut body), body) {
            (Some((FrameLane::Follower, unsent)), PeerBody::StandbyUpdate { gradients, .. }) => {
                (gradients.iter().map(|gradient| gradient.layer.0).collect(), unsent)
            }
            (None, _) => (Vec::new(), None),
            (Some(other), _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn gradients_of_two_turns_wait_for_each_node_and_half_of_those_behind_them() {
        let all = [0, 1, 2, 3];
        let mut turns = UnsentTurns::default();
        let first = [admit(&mut turns, 1, update(4, &all)), admit(&mut turns, 1, update(4, &all))];
        let second = admit(&mut turns, 1, update(5, &all));
        assert!(first.iter().chain([&second]).all(|(sent, _)| *sent == all));
        let third = admit(&mut turns, 1, update(6, &all));
        assert_eq!(third.0, [0, 1], "the way there does not carry all");
        assert_eq!(admit(&mut turns, 2, update(6, &all)).0, all, "that to another one does");
        let fourth = admit(&mut turns, 1, update(7, &all));
        assert_eq!(fourth.0, [0]);
        drop((first, second, third));
        assert_eq!(admit(&mut turns, 1, update(8, &all)).0, [0], "the others lack a gradient");
        let _fifth =
            [admit(&mut turns, 1, update(9, &all)), admit(&mut turns, 1, update(10, &all))];
        assert_eq!(admit(&mut turns, 1, update(11, &all)).0, [0; 0], "nothing is half of one");
        assert_eq!(admit(&mut turns, 1, update(12, &all)).0, [0; 0]);
    }

    #[test]
    fn a_layer_that_is_sent_anew_is_followed_by_its_gradients() {
        let mut turns = UnsentTurns::default();
        let unsent = [4, 5].map(|step| admit(&mut turns, 1, update(step, &[0, 1])));
        assert_eq!(admit(&mut turns, 1, update(6, &[0, 1])).0, [0]);
        drop(unsent);
        let floats = || vec![0.0; 4].into();
        let (layer, version) = (LayerId(1), Step(7));
        let image = LayerImage { layer, version, w: floats(), m: floats(), v: floats() };
        let mut body = PeerBody::StandbyLayer { open: turn(7), image: Arc::new(image.into()) };
        assert!(turns.admit(NodeId(1), &mut body).is_some_and(|(_, unsent)| unsent.is_none()));
        assert_eq!(admit(&mut turns, 1, update(7, &[0, 1])).0, [0, 1]);
    }
}
