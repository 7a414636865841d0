//! Pieces of checkpoints that were written here, until as many other nodes keep them as are wanted.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::NodeId;

use super::wire::PieceRef;

/// Ticks without any progress of a piece, here or where it is to be kept, until it is given up: as long as a
/// plan stands still before it is (rule R10).
const STILL_TICKS_MAX: u32 = 2000;

/// Pieces that were written here and are to be kept elsewhere too before they count as durable.
#[derive(Debug, Default)]
pub struct Copies {
    under_way: BTreeMap<PieceRef, Copying>,
}

#[derive(Debug)]
struct Copying {
    /// Whether it is durable here.
    is_here: bool,
    asked: BTreeSet<NodeId>,
    kept: BTreeSet<NodeId>,
    ticks: u32,
}

/// What came of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// As many have it as are wanted.
    Durable,
    /// Too few can have it.
    Failed,
}

impl Copies {
    /// A piece is being written here; `others` may keep it too, the best first. As many are to as
    /// are wanted, or all if there are fewer.
    pub fn begin(&mut self, piece: PieceRef, wanted: usize, others: &[NodeId]) {
        let asked = others.iter().copied().take(wanted).collect();
        let copying = Copying { is_here: false, asked, kept: BTreeSet::new(), ticks: 0 };
        self.under_way.insert(piece, copying);
    }

    /// Whom to ask for it.
    #[must_use]
    pub fn asked(&self, piece: PieceRef) -> Vec<NodeId> {
        let copying = self.under_way.get(&piece);
        copying.map_or_else(Vec::new, |copying| copying.asked.iter().copied().collect())
    }

    /// It was written here, or not.
    pub fn note_here(&mut self, piece: PieceRef, is_durable: bool) -> Option<CopyOutcome> {
        let copying = self.under_way.get_mut(&piece)?;
        if !is_durable {
            self.under_way.remove(&piece);
            return Some(CopyOutcome::Failed);
        }
        (copying.is_here, copying.ticks) = (true, 0);
        self.outcome(piece)
    }

    /// Another node keeps it, or cannot.
    pub fn note_kept(
        &mut self,
        piece: PieceRef,
        node: NodeId,
        is_kept: bool,
    ) -> Option<CopyOutcome> {
        let copying = self.under_way.get_mut(&piece)?;
        if !copying.asked.contains(&node) {
            return None;
        }
        if !is_kept {
            self.under_way.remove(&piece);
            return Some(CopyOutcome::Failed);
        }
        copying.kept.insert(node);
        self.outcome(piece)
    }

    fn outcome(&mut self, piece: PieceRef) -> Option<CopyOutcome> {
        let copying = self.under_way.get(&piece)?;
        if !copying.is_here || copying.kept.len() < copying.asked.len() {
            return None;
        }
        self.under_way.remove(&piece);
        Some(CopyOutcome::Durable)
    }

    /// A node that was asked gets on with a piece.
    pub fn note_progress(&mut self, piece: PieceRef, node: NodeId) {
        let copying = self.under_way.get_mut(&piece);
        if let Some(copying) = copying.filter(|copying| copying.asked.contains(&node)) {
            copying.ticks = 0;
        }
    }

    /// The store here gets on: with a piece, or with those that are written before it.
    pub fn note_written(&mut self) {
        let here = self.under_way.values_mut().filter(|copying| !copying.is_here);
        here.for_each(|copying| copying.ticks = 0);
    }

    /// Time passes. Yields pieces that get no further.
    pub fn handle_tick(&mut self) -> Vec<PieceRef> {
        self.under_way.values_mut().for_each(|copying| copying.ticks += 1);
        let is_late = |(_, copying): &(PieceRef, Copying)| copying.ticks > STILL_TICKS_MAX;
        let all = std::mem::take(&mut self.under_way);
        let (late, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_late);
        self.under_way = others.into_iter().collect();
        late.into_iter().map(|(piece, _)| piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId, Step};

    use super::*;

    fn piece(layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef { version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    #[test]
    fn piece_is_durable_when_it_is_here_and_elsewhere() {
        let mut copies = Copies::default();
        let others = [NodeId(1), NodeId(2)];
        copies.begin(piece(0), 1, &others);
        assert_eq!(copies.asked(piece(0)), [NodeId(1)]);
        assert_eq!(copies.note_here(piece(0), true), None);
        assert_eq!(copies.note_kept(piece(0), NodeId(2), true), None, "nobody asked it");
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), Some(CopyOutcome::Durable));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), None, "once");
    }

    #[test]
    fn piece_without_others_is_durable_here() {
        let mut copies = Copies::default();
        copies.begin(piece(0), 2, &[]);
        assert_eq!(copies.asked(piece(0)), []);
        assert_eq!(copies.note_here(piece(0), true), Some(CopyOutcome::Durable));
    }

    #[test]
    fn failed_write_is_told_once() {
        let mut copies = Copies::default();
        copies.begin(piece(0), 1, &[NodeId(1)]);
        assert_eq!(copies.note_here(piece(0), false), Some(CopyOutcome::Failed));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), None);
        copies.begin(piece(1), 1, &[NodeId(1)]);
        assert_eq!(copies.note_kept(piece(1), NodeId(1), false), Some(CopyOutcome::Failed));
    }

    #[test]
    fn a_piece_may_take_as_long_as_somebody_gets_on_with_it() {
        let mut copies = Copies::default();
        copies.begin(piece(0), 1, &[NodeId(1)]);
        for _ in 0..3 {
            assert!((0..STILL_TICKS_MAX).all(|_| copies.handle_tick().is_empty()));
            copies.note_written();
        }
        assert_eq!(copies.note_here(piece(0), true), None);
        for _ in 0..3 {
            assert!((0..STILL_TICKS_MAX).all(|_| copies.handle_tick().is_empty()));
            copies.note_progress(piece(0), NodeId(2));
            copies.note_progress(piece(0), NodeId(1));
            copies.note_written();
        }
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), Some(CopyOutcome::Durable));
    }

    #[test]
    fn piece_that_nobody_gets_on_with_is_given_up() {
        let mut copies = Copies::default();
        copies.begin(piece(0), 1, &[NodeId(1)]);
        for _ in 0..STILL_TICKS_MAX {
            assert_eq!(copies.handle_tick(), []);
        }
        assert_eq!(copies.handle_tick(), [piece(0)]);
        assert_eq!(copies.handle_tick(), []);
    }
}
