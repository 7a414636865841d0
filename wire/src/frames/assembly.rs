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

/// A piece of a worker's frame. Its length is the one that its number has under the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct FramePiece {
    pub(super) generation: Generation,
    pub(super) sender: Holder,
    pub(super) of: AssembledFrame,
    pub(super) piece: MessageNumber,
    /// Floats by layer: those of a layer that is cut continue in the next piece.
    pub(super) parts: Vec<(LayerId, Vec<f32>)>,
}

impl FramePiece {
    /// The frame, if it is no more than this.
    pub(super) fn whole_if_alone(self) -> IncomingFrame {
        if self.piece.count > 1 {
            IncomingFrame::Piece(Box::new(self))
        } else {
            IncomingFrame::Whole(Box::new(self.into_frame()))
        }
    }

    fn into_frame(self) -> PeerFrame {
        let Self { generation, sender, of, parts, .. } = self;
        let run = |parts: Vec<(LayerId, Vec<f32>)>| parts.into_iter().flat_map(|part| part.1);
        let gradients = |turn, parts: Vec<(LayerId, Vec<f32>)>| {
            let each =
                parts.into_iter().map(|(layer, g)| LayerGradient { layer, turn, g: g.into() });
            each.map(Arc::new).collect::<Vec<_>>()
        };
        let body = match of {
            AssembledFrame::Update { turn, before, .. } => {
                PeerBody::StandbyUpdate { turn, before, gradients: gradients(turn, parts) }
            }
            AssembledFrame::Partial { turn, chunk, exchange, losses } => {
                let header = (turn, chunk, exchange, losses);
                PeerBody::Partial(partial_of(header, run(parts).collect()))
            }
        };
        PeerFrame { generation, sender, body }
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        let MessageNumber { index, count } = self.piece;
        let is_same =
            (self.generation, self.sender, self.of) == (next.generation, next.sender, next.of);
        is_same && next.piece == MessageNumber { index: index + 1, count }
    }

    fn append(&mut self, next: Self) {
        self.piece = next.piece;
        for (layer, floats) in next.parts {
            match self.parts.last_mut() {
                Some((last, begun)) if *last == layer => begun.extend(floats),
                Some(_) | None => self.parts.push((layer, floats)),
            }
        }
    }
}

/// Pieces that wait for the next: of each sender those of one frame, so that no more than what the
/// rules of the plan allow lies here.
#[derive(Debug, Default)]
pub struct FrameAssembly {
    under_way: BTreeMap<NodeId, FramePiece>,
}

impl FrameAssembly {
    /// Takes a piece; yields the frame if it was the last.
    pub fn push(&mut self, piece: FramePiece) -> Option<PeerFrame> {
        // Workers of an earlier plan send no more.
        self.under_way.retain(|_, begun| begun.generation >= piece.generation);
        let node = piece.sender.node;
        let begun = self.under_way.remove(&node);
        let joined = match begun {
            _ if piece.piece.index == 0 => piece,
            Some(mut begun) if begun.is_followed_by(&piece) => {
                begun.append(piece);
                begun
            }
            Some(_) | None => return None,
        };
        if joined.piece.index + 1 >= joined.piece.count {
            return Some(joined.into_frame());
        }
        self.under_way.insert(node, joined);
        None
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Attempt, Incarnation, Step};

    use super::*;

    fn turn(step: u64) -> Turn {
        Turn { generation: Generation(1), attempt: Attempt(0), step: Step(step) }
    }

    fn piece(node: u64, step: u64, index: u32, parts: &[(u32, &[f32])]) -> FramePiece {
        let sender = Holder { node: NodeId(node), incarnation: Incarnation(1) };
        let of = AssembledFrame::Update { turn: turn(step), before: None, layer: LayerId(0) };
        let parts = parts.iter().map(|(layer, floats)| (LayerId(*layer), floats.to_vec()));
        let piece = MessageNumber { index, count: 3 };
        FramePiece { generation: Generation(1), sender, of, piece, parts: parts.collect() }
    }

    fn contents(frame: Option<PeerFrame>) -> Vec<(u32, Vec<f32>)> {
        let Some(PeerFrame { body: PeerBody::StandbyUpdate { gradients, .. }, .. }) = frame else {
            return Vec::new();
        };
        let floats = |g: &LayerGradient| g.g.wait().expect("no fault").to_vec();
        gradients.iter().map(|gradient| (gradient.layer.0, floats(gradient))).collect()
    }

    #[test]
    fn pieces_of_two_senders_are_joined_each_with_its_own() {
        let mut assembly = FrameAssembly::default();
        for (node, first) in [(1, 1.0), (2, 10.0)] {
            assert!(assembly.push(piece(node, 5, 0, &[(0, &[first]), (1, &[2.0])])).is_none());
        }
        for node in [2, 1] {
            assert!(assembly.push(piece(node, 5, 1, &[(1, &[3.0, 4.0])])).is_none());
        }
        for (node, first) in [(1, 1.0), (2, 10.0)] {
            let last = piece(node, 5, 2, &[(1, &[5.0]), (2, &[6.0])]);
            let expected = [(0, vec![first]), (1, vec![2.0, 3.0, 4.0, 5.0]), (2, vec![6.0])];
            assert_eq!(contents(assembly.push(last)), expected);
        }
    }

    #[test]
    fn a_piece_that_does_not_follow_ends_what_was_begun() {
        let mut assembly = FrameAssembly::default();
        assembly.push(piece(1, 5, 0, &[(0, &[1.0])]));
        assert!(assembly.push(piece(1, 6, 1, &[(1, &[1.0])])).is_none(), "another step's");
        assert!(assembly.push(piece(1, 5, 1, &[(1, &[1.0])])).is_none(), "nothing is begun");
        assert!(assembly.push(piece(1, 5, 2, &[(2, &[1.0])])).is_none());
        assembly.push(piece(1, 5, 0, &[(0, &[1.0])]));
        assert!(assembly.push(piece(1, 5, 2, &[(2, &[1.0])])).is_none(), "one is missing");
        // The whole of it again, after a connection that broke half-way.
        assembly.push(piece(1, 5, 0, &[(0, &[1.0])]));
        assembly.push(piece(1, 5, 0, &[(0, &[7.0])]));
        assembly.push(piece(1, 5, 1, &[(1, &[8.0])]));
        let expected = [(0, vec![7.0]), (1, vec![8.0]), (2, vec![9.0])];
        assert_eq!(contents(assembly.push(piece(1, 5, 2, &[(2, &[9.0])]))), expected);
    }
}
