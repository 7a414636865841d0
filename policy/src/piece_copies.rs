//! Pieces of checkpoints that are written here, until as many nodes keep them as are desired. A
//! node that cannot keep one, or reports no progress of it, is replaced by the next; so is the
//! store here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{Generation, NodeId};

use crate::piece::PieceRef;

/// Ticks without any progress of a piece, here or where it is to be kept, until the nodes that
/// write it are given up: half of the ticks without progress until a plan is (rule R10), so that
/// another node gets the request first.
///
/// It follows from no length: bytes arrive at a node as fast as its disk writes them, but for chunks
/// of 4 MiB that are being written, one of each piece that is kept and one of an own piece, and 5 MiB of each
/// fetch that wait for the sink. So a disk that writes 2 MiB/s keeps pieces of any length. Where direct writes
/// stay in a cache of the disk's host, a sync waits for four chunks of each piece that is kept and eight of an
/// own one, and the disk has to write 7 MiB/s.
const STILL_TICKS_MAX: u32 = 1000;

/// Reports of a node of an earlier version, which names no bytes, that count as progress of a piece:
/// an hour of one a second.
const UNCOUNTED_REPORTS_MAX: u32 = 3_600;

/// Pieces that were written here and are to be kept elsewhere too before they count as durable.
#[derive(Debug, Default)]
pub struct PieceCopies {
    under_way: BTreeMap<PieceRef, PieceCopyState>,
}

#[derive(Debug)]
struct PieceCopyState {
    /// The plan under which it was sealed.
    generation: Generation,
    /// Whether the store here has it; none while it is written.
    is_local: Option<bool>,
    /// Whether others can fetch it before it was written here.
    is_offered: bool,
    /// Copies that make it durable, here and elsewhere.
    wanted: usize,
    /// Nodes that were sent the request and have not answered, with what they reported.
    requested: BTreeMap<NodeId, KeepProgress>,
    kept: BTreeSet<NodeId>,
    /// Nodes that were not sent the request yet, the best first.
    others: VecDeque<NodeId>,
    ticks: u32,
}

/// The reports of a node that is to keep a piece.
#[derive(Clone, Copy, Debug, Default)]
struct KeepProgress {
    /// The fewest bytes that were to arrive there.
    left_min: Option<u64>,
    /// Reports that named none.
    uncounted: u32,
}

impl KeepProgress {
    /// Whether a report shows that the node makes progress: bytes that are left become fewer, and
    /// there is an end to that.
    fn note(&mut self, left: Option<u64>) -> bool {
        match left {
            Some(left) => {
                let is_fewer = self.left_min.is_none_or(|least| left < least);
                self.left_min = Some(self.left_min.map_or(left, |least| least.min(left)));
                is_fewer
            }
            None if self.left_min.is_some() => false,
            None => {
                self.uncounted += 1;
                self.uncounted <= UNCOUNTED_REPORTS_MAX
            }
        }
    }
}

/// The next step for a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceCopyAction {
    /// Nothing: a store is still writing it, or it is not one of this node's any more.
    Wait,
    /// Send these nodes the request to keep it.
    Request(Vec<NodeId>),
    /// As many nodes keep it as are desired; or fewer, at least one, and no other can keep it: a
    /// checkpoint on one disk is worth more than none.
    Durable {
        /// The plan under which it was sealed.
        generation: Generation,
        /// Copies that were written, here and elsewhere.
        copies: usize,
        /// Number of copies desired.
        wanted: usize,
    },
    /// No node can keep it.
    Failed {
        /// The plan under which it was sealed.
        generation: Generation,
        /// Number of copies desired.
        wanted: usize,
    },
}

impl PieceCopyState {
    fn copies(&self) -> usize {
        self.kept.len() + usize::from(self.is_local == Some(true))
    }

    /// Other nodes fetch it from here, so no request is sent before they can: it was written, could
    /// not be, or is offered from memory. The copy that is being written here counts as one that
    /// will be.
    fn next(&mut self) -> PieceCopyAction {
        let is_written = self.is_local.is_some();
        if !is_written && !self.is_offered {
            return PieceCopyAction::Wait;
        }
        let copies = self.copies();
        let wanted = self.wanted;
        let generation = self.generation;
        let missing = wanted.saturating_sub(copies + usize::from(!is_written));
        let open = missing.saturating_sub(self.requested.len());
        let now: Vec<_> = self.others.drain(..open.min(self.others.len())).collect();
        self.requested.extend(now.iter().map(|node| (*node, KeepProgress::default())));
        if !now.is_empty() {
            PieceCopyAction::Request(now)
        } else if !is_written || (missing > 0 && !self.requested.is_empty()) {
            PieceCopyAction::Wait
        } else if copies > 0 {
            PieceCopyAction::Durable { generation, copies, wanted }
        } else {
            PieceCopyAction::Failed { generation, wanted }
        }
    }
}

impl PieceCopies {
    /// A piece that was sealed under this plan is being written here; `others` may keep it too, the
    /// best first. As many are to as are desired, or all if there are fewer: at once if it is
    /// offered to them, and else behind the write.
    pub fn begin(
        &mut self,
        (piece, generation): (PieceRef, Generation),
        wanted: usize,
        (others, is_offered): (Vec<NodeId>, bool),
    ) -> PieceCopyAction {
        let wanted = 1 + wanted.min(others.len());
        let requested = BTreeMap::new();
        let kept = BTreeSet::new();
        let others = others.into();
        let mut state = PieceCopyState {
            generation,
            is_local: None,
            is_offered,
            wanted,
            requested,
            kept,
            others,
            ticks: 0,
        };
        let next = state.next();
        self.under_way.insert(piece, state);
        next
    }

    /// The store here has it, or cannot store it.
    pub fn note_local(&mut self, piece: PieceRef, is_durable: bool) -> PieceCopyAction {
        self.note(piece, |state| state.is_local = Some(is_durable))
    }

    /// Another node keeps it, or cannot.
    pub fn note_kept(&mut self, piece: PieceRef, node: NodeId, is_kept: bool) -> PieceCopyAction {
        self.note(piece, |state| {
            if state.requested.remove(&node).is_some() && is_kept {
                state.kept.insert(node);
            } else if mutant::is(Mutant::M31FirstRefusalFails) {
                state.others.clear();
            }
        })
    }

    /// A node is gone, or its connection: it is not waited for. It still has its pieces on its
    /// disk.
    pub fn note_down(&mut self, node: NodeId) -> Vec<(PieceRef, PieceCopyAction)> {
        let requested =
            self.under_way.iter().filter(|(_, state)| state.requested.contains_key(&node));
        let pieces: Vec<PieceRef> = requested.map(|(piece, _)| *piece).collect();
        pieces.into_iter().map(|piece| (piece, self.note_kept(piece, node, false))).collect()
    }

    /// Whether a piece is on its way to disks.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    fn note(
        &mut self,
        piece: PieceRef,
        change: impl FnOnce(&mut PieceCopyState),
    ) -> PieceCopyAction {
        let Some(state) = self.under_way.get_mut(&piece) else { return PieceCopyAction::Wait };
        change(state);
        state.ticks = 0;
        let next = state.next();
        if matches!(next, PieceCopyAction::Durable { .. } | PieceCopyAction::Failed { .. }) {
            self.under_way.remove(&piece);
        }
        next
    }

    /// A node that was sent the request reports progress of a piece: so many bytes are yet to arrive
    /// there, if it names any.
    pub fn note_progress(&mut self, piece: PieceRef, node: NodeId, left: Option<u64>) {
        let Some(state) = self.under_way.get_mut(&piece) else { return };
        let Some(reports) = state.requested.get_mut(&node) else { return };
        if reports.note(left) || mutant::is(Mutant::M49KeepingForEver) {
            state.ticks = 0;
        }
    }

    /// The store here makes progress: with a piece, or with those that are written before it.
    pub fn note_written(&mut self) {
        let here = self.under_way.values_mut().filter(|state| state.is_local.is_none());
        here.for_each(|state| state.ticks = 0);
    }

    /// A tick. For a piece without progress, all nodes that have not answered the request are given
    /// up, and the store here, if it is still writing.
    pub fn handle_tick(&mut self) -> Vec<(PieceRef, PieceCopyAction)> {
        self.under_way.values_mut().for_each(|state| state.ticks += 1);
        let stalled = self.under_way.iter().filter(|(_, state)| state.ticks > STILL_TICKS_MAX);
        let stalled: Vec<PieceRef> = stalled.map(|(piece, _)| *piece).collect();
        let give_up = |state: &mut PieceCopyState| {
            state.is_local.get_or_insert(false);
            state.requested.clear();
        };
        stalled.into_iter().map(|piece| (piece, self.note(piece, give_up))).collect()
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;

    const GENERATION: Generation = Generation(3);

    fn piece(layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef { run: RunId(1), version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    fn request(nodes: &[u64]) -> PieceCopyAction {
        PieceCopyAction::Request(nodes.iter().copied().map(NodeId).collect())
    }

    const fn durable(copies: usize, wanted: usize) -> PieceCopyAction {
        PieceCopyAction::Durable { generation: GENERATION, copies, wanted }
    }

    /// A piece of which `wanted` copies are to be kept elsewhere, with nodes 1 to `others` as
    /// candidates.
    fn begun(wanted: usize, others: u64) -> PieceCopies {
        let mut copies = PieceCopies::default();
        let others = (1..=others).map(NodeId).collect();
        let next = copies.begin((piece(0), GENERATION), wanted, (others, false));
        assert_eq!(next, PieceCopyAction::Wait, "nobody can fetch it yet");
        copies
    }

    #[test]
    fn piece_is_durable_when_it_is_here_and_elsewhere() {
        let mut copies = begun(1, 2);
        assert_eq!(copies.note_local(piece(0), true), request(&[1]));
        assert_eq!(
            copies.note_kept(piece(0), NodeId(2), true),
            PieceCopyAction::Wait,
            "it was not sent the request"
        );
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), durable(2, 2));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), PieceCopyAction::Wait, "once");
    }

    #[test]
    fn others_fetch_a_piece_from_memory_while_it_is_written_here() {
        let begun = |others: u64| {
            let mut copies = PieceCopies::default();
            let others = (1..=others).map(NodeId).collect();
            let next = copies.begin((piece(0), GENERATION), 1, (others, true));
            (copies, next)
        };
        let (mut copies, next) = begun(3);
        assert_eq!(next, request(&[1]));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), false), request(&[2]));
        assert_eq!(copies.note_kept(piece(0), NodeId(2), true), PieceCopyAction::Wait);
        assert_eq!(copies.note_local(piece(0), true), durable(2, 2));
        // The store here that takes no more is replaced as well.
        let (mut copies, _) = begun(3);
        assert_eq!(copies.note_local(piece(0), false), request(&[2]));
        assert_eq!(copies.note_kept(piece(0), NodeId(2), true), PieceCopyAction::Wait);
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), durable(2, 2));
        // Nobody keeps it: it is on its way to the disk here all the same.
        let (mut copies, _) = begun(1);
        assert_eq!(copies.note_kept(piece(0), NodeId(1), false), PieceCopyAction::Wait);
        assert_eq!(copies.note_local(piece(0), true), durable(1, 2));
        let (mut copies, next) = begun(0);
        assert_eq!(next, PieceCopyAction::Wait);
        assert_eq!(copies.note_local(piece(0), true), durable(1, 1));
    }

    #[test]
    fn piece_without_others_is_durable_here() {
        let mut copies = begun(2, 0);
        assert_eq!(copies.note_local(piece(0), true), durable(1, 1));
    }

    #[test]
    fn a_node_that_cannot_keep_it_is_replaced_by_the_next() {
        let mut copies = begun(2, 4);
        assert_eq!(copies.note_local(piece(0), true), request(&[1, 2]));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), false), request(&[3]));
        assert_eq!(copies.note_kept(piece(0), NodeId(2), true), PieceCopyAction::Wait);
        assert_eq!(copies.note_down(NodeId(3)), [(piece(0), request(&[4]))]);
        assert_eq!(copies.note_down(NodeId(2)), [], "it has it on its disk");
        assert_eq!(copies.note_kept(piece(0), NodeId(4), true), durable(3, 3));
    }

    #[test]
    fn a_store_here_that_takes_no_more_is_replaced_by_another_node() {
        let mut copies = begun(1, 3);
        assert_eq!(copies.note_local(piece(0), false), request(&[1, 2]));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), PieceCopyAction::Wait);
        assert_eq!(copies.note_kept(piece(0), NodeId(2), true), durable(2, 2));
    }

    #[test]
    fn a_piece_that_too_few_can_keep_is_durable_where_it_is() {
        let mut copies = begun(1, 1);
        assert_eq!(copies.note_local(piece(0), false), request(&[1]));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), durable(1, 2));
        let mut copies = begun(1, 2);
        assert_eq!(copies.note_local(piece(0), true), request(&[1]));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), false), request(&[2]));
        assert_eq!(copies.note_kept(piece(0), NodeId(2), false), durable(1, 2));
        let mut copies = begun(2, 2);
        assert_eq!(copies.note_local(piece(0), true), request(&[1, 2]));
        assert_eq!(copies.note_kept(piece(0), NodeId(1), false), PieceCopyAction::Wait);
        assert_eq!(copies.note_kept(piece(0), NodeId(2), true), durable(2, 3));
    }

    #[test]
    fn a_piece_that_no_node_can_keep_fails() {
        let mut copies = begun(1, 1);
        assert_eq!(copies.note_local(piece(0), false), request(&[1]));
        assert_eq!(
            copies.note_kept(piece(0), NodeId(1), false),
            PieceCopyAction::Failed { generation: GENERATION, wanted: 2 }
        );
        let mut copies = begun(1, 0);
        assert_eq!(
            copies.note_local(piece(0), false),
            PieceCopyAction::Failed { generation: GENERATION, wanted: 1 }
        );
    }

    #[test]
    fn a_piece_may_take_as_long_as_a_node_makes_progress() {
        let mut copies = begun(1, 1);
        for _ in 0..3 {
            assert!((0..STILL_TICKS_MAX).all(|_| copies.handle_tick().is_empty()));
            copies.note_written();
        }
        assert_eq!(copies.note_local(piece(0), true), request(&[1]));
        for left in [9, 5, 4] {
            assert!((0..STILL_TICKS_MAX).all(|_| copies.handle_tick().is_empty()));
            copies.note_progress(piece(0), NodeId(2), Some(0));
            copies.note_progress(piece(0), NodeId(1), Some(left));
            copies.note_written();
        }
        assert_eq!(copies.note_kept(piece(0), NodeId(1), true), durable(2, 2));
    }

    /// Its disk hangs, or it lies: it reports each second, and what is left does not become less.
    #[test]
    fn a_node_that_reports_for_ever_is_given_up_as_one_that_is_silent() {
        for reports in [[Some(9), Some(9)], [Some(9), None], [Some(9), Some(10)]] {
            let mut copies = begun(1, 2);
            assert_eq!(copies.note_local(piece(0), true), request(&[1]));
            copies.note_progress(piece(0), NodeId(1), reports[0]);
            let next = (0..=STILL_TICKS_MAX).find_map(|_| {
                copies.note_progress(piece(0), NodeId(1), reports[1]);
                copies.handle_tick().pop()
            });
            assert_eq!(next, Some((piece(0), request(&[2]))), "{reports:?}");
        }
        let mut copies = begun(1, 2);
        assert_eq!(copies.note_local(piece(0), true), request(&[1]));
        let ends = (0..2 * UNCOUNTED_REPORTS_MAX).any(|_| {
            copies.note_progress(piece(0), NodeId(1), None);
            !copies.handle_tick().is_empty()
        });
        assert!(ends, "nor is one of an earlier version waited for without an end");
    }

    #[test]
    fn a_node_that_gets_no_further_with_a_piece_is_given_up() {
        let mut copies = begun(1, 2);
        let stalled = |copies: &mut PieceCopies| {
            assert!((0..STILL_TICKS_MAX).all(|_| copies.handle_tick().is_empty()));
            copies.handle_tick()
        };
        assert_eq!(copies.note_local(piece(0), true), request(&[1]));
        assert_eq!(stalled(&mut copies), [(piece(0), request(&[2]))]);
        assert_eq!(stalled(&mut copies), [(piece(0), durable(1, 2))]);
        assert_eq!(copies.handle_tick(), []);
    }
}
