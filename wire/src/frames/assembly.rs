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

/// The frame that a piece is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PieceHeader {
    pub(super) generation: Generation,
    pub(super) sender: Holder,
    pub(super) of: AssembledFrame,
}

impl PieceHeader {
    fn frame(self, floats: Vec<f32>) -> PeerFrame {
        let Self { generation, sender, of } = self;
        PeerFrame { generation, sender, body: of.of_floats(floats) }
    }
}

/// A piece of a worker's frame. Its length is the one that its number has under the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct FramePiece {
    pub(super) header: PieceHeader,
    pub(super) piece: MessageNumber,
    /// They follow on those of the piece before.
    pub(super) floats: FramePart,
}

impl FramePiece {
    /// The frame, if it is no more than this.
    pub(super) fn whole_if_alone(self) -> IncomingFrame {
        if self.piece.count > 1 {
            IncomingFrame::Piece(Box::new(self))
        } else {
            IncomingFrame::Whole(Box::new(self.header.frame(self.floats.into_vec())))
        }
    }
}

/// Pieces that wait for the next.
#[derive(Debug)]
struct BegunFrame {
    header: PieceHeader,
    /// The last piece.
    piece: MessageNumber,
    floats: Vec<f32>,
}

impl BegunFrame {
    fn is_followed_by(&self, next: &FramePiece) -> bool {
        let MessageNumber { index, count } = self.piece;
        self.header == next.header && next.piece == MessageNumber { index: index + 1, count }
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
    pub fn push(&mut self, next: FramePiece) -> Option<PeerFrame> {
        let FramePiece { header, piece, .. } = next;
        // Workers of an earlier plan send no more.
        self.under_way.retain(|_, begun| begun.header.generation >= header.generation);
        let key = (header.sender.node, header.of.urgency());
        let begun = self.under_way.remove(&key).filter(|begun| begun.is_followed_by(&next));
        let mut floats = match begun {
            Some(begun) => begun.floats,
            None if piece.index == 0 => Vec::new(),
            None => return None,
        };
        floats.extend_from_slice(&next.floats);
        if piece.index + 1 < piece.count {
            self.under_way.insert(key, BegunFrame { header, piece, floats });
            return None;
        }
        Some(header.frame(floats))
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
        let header = PieceHeader { generation: Generation(1), sender, of };
        FramePiece { header, piece, floats }
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
