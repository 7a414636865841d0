//! Pieces of followed and of partial gradients joined again, each sender's one after another.
//!
//! The lane keeps the order, so what does not follow on the piece before belongs to something that
//! a broken connection cut short: it is dropped, and so is what came of it. The worker that waits
//! for it gets no notice, as with a frame that is lost whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::{Seal, Turn};
use zbelastic_trainer::elastic::LayerGradient;
use zbelastic_trainer::runtime::{MessageNumber, PeerBody, PeerFrame};
use zbelastic_trainer::stage::PartialExchange;
use zbelastic_transport::{FramePart, Urgency};
use zbelastic_types::{ChunkIndex, Generation, LayerId, NodeId};

use super::{IncomingFrame, partial_of};

/// What pieces make up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AssembledFrame {
    /// The gradient of a layer that is followed.
    Update { turn: Turn, before: Option<Seal>, layer: LayerId },
    /// What a chunk gets of another's gradient, and so many losses behind it.
    Partial { turn: Turn, chunk: ChunkIndex, exchange: PartialExchange, losses: u32 },
}

impl AssembledFrame {
    /// Pieces of one urgency keep their order; those of another come between them.
    const fn urgency(self) -> Urgency {
        match self {
            Self::Update { .. } => Urgency::Background,
            Self::Partial { .. } => Urgency::Critical,
        }
    }

    fn of_floats(self, floats: Vec<f32>) -> PeerBody {
        match self {
            Self::Update { turn, before, layer } => {
                let gradients = vec![Arc::new(LayerGradient { layer, turn, g: floats.into() })];
                PeerBody::StandbyUpdate { turn, before, gradients }
            }
            Self::Partial { turn, chunk, exchange, losses } => {
                PeerBody::Partial(partial_of((turn, chunk, exchange, losses), floats))
            }
        }
    }
}

/// A piece of a worker's frame. Its length is the one that its number has under the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct FramePiece {
    pub(super) generation: Generation,
    pub(super) sender: Holder,
    pub(super) of: AssembledFrame,
    pub(super) piece: MessageNumber,
    /// They follow on those of the piece before.
    pub(super) floats: FramePart,
}

impl FramePiece {
    /// The frame, if it is no more than this.
    pub(super) fn whole_if_alone(self) -> IncomingFrame {
        if self.piece.count > 1 {
            return IncomingFrame::Piece(Box::new(self));
        }
        let Self { generation, sender, of, floats, .. } = self;
        let body = of.of_floats(floats.into_vec());
        IncomingFrame::Whole(Box::new(PeerFrame { generation, sender, body }))
    }
}

/// Pieces that wait for the next.
#[derive(Debug)]
struct BegunFrame {
    generation: Generation,
    sender: Holder,
    of: AssembledFrame,
    /// The last piece.
    piece: MessageNumber,
    floats: Vec<f32>,
}

impl BegunFrame {
    fn of_first(piece: &FramePiece) -> Self {
        let FramePiece { generation, sender, of, piece, .. } = *piece;
        Self { generation, sender, of, piece, floats: Vec::new() }
    }

    fn is_followed_by(&self, next: &FramePiece) -> bool {
        let MessageNumber { index, count } = self.piece;
        let is_same =
            (self.generation, self.sender, self.of) == (next.generation, next.sender, next.of);
        is_same && next.piece == MessageNumber { index: index + 1, count }
    }
}

/// Pieces that wait for the next: of each sender those of one frame of each urgency, so that no more than what
/// the rules of the plan allow lies here.
#[derive(Debug, Default)]
pub struct FrameAssembly {
    under_way: BTreeMap<(NodeId, Urgency), BegunFrame>,
}

impl FrameAssembly {
    /// Takes a piece; yields the frame if it was the last.
    pub fn push(&mut self, piece: FramePiece) -> Option<PeerFrame> {
        // Workers of an earlier plan send no more.
        self.under_way.retain(|_, begun| begun.generation >= piece.generation);
        let key = (piece.sender.node, piece.of.urgency());
        let begun = self.under_way.remove(&key).filter(|begun| begun.is_followed_by(&piece));
        let is_first = piece.piece.index == 0;
        let mut begun = begun.or_else(|| is_first.then(|| BegunFrame::of_first(&piece)))?;
        begun.piece = piece.piece;
        begun.floats.extend_from_slice(&piece.floats);
        if begun.piece.index + 1 < begun.piece.count {
            self.under_way.insert(key, begun);
            return None;
        }
        let BegunFrame { generation, sender, of, floats, .. } = begun;
        Some(PeerFrame { generation, sender, body: of.of_floats(floats) })
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Attempt, Incarnation, Step};

    use super::*;

    fn turn(step: u64) -> Turn {
        Turn { generation: Generation(1), attempt: Attempt(0), step: Step(step) }
    }

    fn update(step: u64) -> AssembledFrame {
        AssembledFrame::Update { turn: turn(step), before: None, layer: LayerId(7) }
    }

    fn partial(step: u64) -> AssembledFrame {
        let exchange = PartialExchange::FIRST;
        AssembledFrame::Partial { turn: turn(step), chunk: ChunkIndex(3), exchange, losses: 0 }
    }

    fn piece(node: u64, of: AssembledFrame, index: u32, floats: &[f32]) -> FramePiece {
        let sender = Holder { node: NodeId(node), incarnation: Incarnation(1) };
        let piece = MessageNumber { index, count: 3 };
        let floats = floats.to_vec().into();
        FramePiece { generation: Generation(1), sender, of, piece, floats }
    }

    fn contents(frame: Option<PeerFrame>) -> Vec<f32> {
        let body = frame.expect("it is whole").body;
        if let PeerBody::StandbyUpdate { gradients, .. } = &body {
            assert_eq!((gradients.len(), gradients[0].layer), (1, LayerId(7)));
            return gradients[0].g.wait().expect("no fault").to_vec();
        }
        let PeerBody::Partial(partial) = body else { panic!("neither is joined") };
        partial.floats
    }

    #[test]
    fn pieces_of_two_senders_are_joined_each_with_its_own() {
        let mut assembly = FrameAssembly::default();
        for (node, first) in [(1, 1.0), (2, 10.0)] {
            assert!(assembly.push(piece(node, update(5), 0, &[first, 2.0])).is_none());
        }
        for node in [2, 1] {
            assert!(assembly.push(piece(node, update(5), 1, &[3.0, 4.0])).is_none());
        }
        for (node, first) in [(1, 1.0), (2, 10.0)] {
            let last = assembly.push(piece(node, update(5), 2, &[5.0]));
            assert_eq!(contents(last), [first, 2.0, 3.0, 4.0, 5.0]);
        }
    }

    /// What replicas exchange overtakes gradients for followers.
    #[test]
    fn pieces_of_another_urgency_may_come_between() {
        let mut assembly = FrameAssembly::default();
        assert!(assembly.push(piece(1, update(5), 0, &[1.0])).is_none());
        assert!(assembly.push(piece(1, partial(5), 0, &[10.0])).is_none());
        assert!(assembly.push(piece(1, update(5), 1, &[2.0])).is_none());
        assert!(assembly.push(piece(1, partial(5), 1, &[20.0])).is_none());
        assert_eq!(contents(assembly.push(piece(1, partial(5), 2, &[30.0]))), [10.0, 20.0, 30.0]);
        assert_eq!(contents(assembly.push(piece(1, update(5), 2, &[3.0]))), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn a_piece_that_does_not_follow_ends_what_was_begun() {
        let mut assembly = FrameAssembly::default();
        assembly.push(piece(1, update(5), 0, &[1.0]));
        assert!(assembly.push(piece(1, update(6), 1, &[1.0])).is_none(), "another step's");
        assert!(assembly.push(piece(1, update(5), 1, &[1.0])).is_none(), "nothing is begun");
        assert!(assembly.push(piece(1, update(5), 2, &[1.0])).is_none());
        assembly.push(piece(1, update(5), 0, &[1.0]));
        assert!(assembly.push(piece(1, update(5), 2, &[1.0])).is_none(), "one is missing");
        // The whole of it again, after a connection that broke half-way.
        assembly.push(piece(1, update(5), 0, &[1.0]));
        assembly.push(piece(1, update(5), 0, &[7.0]));
        assembly.push(piece(1, update(5), 1, &[8.0]));
        assert_eq!(contents(assembly.push(piece(1, update(5), 2, &[9.0]))), [7.0, 8.0, 9.0]);
    }
}
