//! Pieces of checkpoints that other nodes request this node to keep: fetched and written a few at a
//! time, so that no more than some chunks are in memory for it, while the requesters receive
//! progress reports.

use std::collections::{BTreeMap, VecDeque};

use zbelastic_checkpoint::{CheckpointId, PieceName};
use zbelastic_types::{Bytes, NodeId};

use crate::keep_quota::{KeepQuota, QuotaExceeded};
use crate::piece::PieceRef;
use crate::work_counter::WorkCounter;

/// Pieces of one requester that wait at once: the layers of two checkpoints of the largest model.
/// Another one is refused.
const WAITING_MAX: usize = 2048;
/// Pieces that are fetched at once: while one's bytes are hashed or synced, another's arrive.
const UNDER_WAY_MAX: usize = 2;
/// Ticks between two progress reports to the requesters.
const REPORT_TICKS: u32 = 100;

/// Pieces to be kept, and the node that requested each.
#[derive(Debug, Default)]
pub struct KeepQueue {
    quota: KeepQuota,
    waiting: VecDeque<(PieceRef, NodeId)>,
    /// At most [`UNDER_WAY_MAX`], in the order in which they were begun.
    under_way: Vec<PieceUnderWay>,
    /// Requesters whose last piece was not kept, with its version. One that requests no more is left out once that
    /// version is collected, so that there are no more of them than requested pieces of so many versions.
    failing: BTreeMap<NodeId, CheckpointId>,
    /// Bytes that had arrived of pieces that are not under way any more.
    arrived_before: u64,
    /// Bytes that had arrived at the last report.
    reported: u64,
    ticks: u32,
}

/// A piece that is to be fetched now.
#[derive(Clone, Debug)]
pub struct BegunPiece {
    /// The piece.
    pub piece: PieceRef,
    /// The node that requested it to be kept, which has it.
    pub requested_by: NodeId,
    /// Counts its bytes that arrive: of nothing else, or a piece that never comes would be waited for
    /// as long as anything does.
    pub arrived: WorkCounter,
    /// Bytes that the disk has to take: its own, and what is left of those under way.
    pub needed: Bytes,
}

#[derive(Debug)]
struct PieceUnderWay {
    piece: PieceRef,
    requested_by: NodeId,
    arrived: WorkCounter,
}

impl PieceUnderWay {
    fn is_of(&self, request: (PieceRef, NodeId)) -> bool {
        (self.piece, self.requested_by) == request
    }

    /// Bytes that are yet to arrive.
    fn left(&self) -> u64 {
        self.piece.length.saturating_sub(self.arrived.total())
    }
}

/// A report to the requester of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepReport {
    /// The piece that is to be kept.
    pub piece: PieceRef,
    /// The node that requested it.
    pub requested_by: NodeId,
    /// Bytes that are yet to arrive here until it is kept: its own, and those of the pieces before
    /// it. They only become fewer.
    pub left: u64,
}

/// Why a piece does not wait here to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepQueueRefusal {
    /// Too many of its requester wait.
    #[error("{WAITING_MAX} of its pieces wait already")]
    Full,
    /// It is more than is kept for one node.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
}

impl KeepQueue {
    /// A piece is to be kept for a node. A piece that is there already is kept once.
    ///
    /// # Errors
    /// If too much of the node waits or is kept.
    pub fn push(&mut self, piece: PieceRef, node: NodeId) -> Result<(), KeepQueueRefusal> {
        let request = (piece, node);
        let is_under_way = self.under_way.iter().any(|begun| begun.is_of(request));
        if is_under_way || self.waiting.contains(&request) {
            return Ok(());
        }
        if self.waiting.iter().filter(|(_, requested_by)| *requested_by == node).count()
            >= WAITING_MAX
        {
            return Err(KeepQueueRefusal::Full);
        }
        self.quota.grant(piece, node)?;
        self.waiting.push_back(request);
        Ok(())
    }

    /// So many members may request pieces; what lies in the store is read at the first call.
    pub fn note_members(
        &mut self,
        members: usize,
        stored: impl FnOnce() -> Option<Vec<PieceName>>,
    ) {
        self.quota.note_members(members, stored);
    }

    /// The cluster refers to these versions; older ones are removed here.
    pub fn note_referred(&mut self, versions: impl IntoIterator<Item = CheckpointId>) {
        self.quota.note_referred(versions);
        self.failing.retain(|_, version| !self.quota.is_collected(*version));
    }

    /// The next piece to fetch, if not enough are under way.
    pub fn poll(&mut self) -> Option<BegunPiece> {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        let (piece, requested_by) = self.waiting.pop_front()?;
        let arrived = WorkCounter::default();
        self.under_way.push(PieceUnderWay { piece, requested_by, arrived: arrived.clone() });
        let needed = Bytes(self.under_way.iter().map(PieceUnderWay::left).sum());
        Some(BegunPiece { piece, requested_by, arrived, needed })
    }

    /// Whether a piece is under way.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Bytes of pieces that arrived here to be kept.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        let under_way = self.under_way.iter().map(|begun| begun.arrived.total());
        self.arrived_before + under_way.sum::<u64>()
    }

    /// A piece is kept, or will not be. Returns whether it is the first of its requester that is not
    /// kept since one was, which an operator is warned of.
    pub fn note_done(&mut self, piece: PieceRef, node: NodeId, is_kept: bool) -> bool {
        for begun in self.under_way.extract_if(.., |begun| begun.is_of((piece, node))) {
            self.arrived_before += begun.arrived.total();
        }
        if is_kept {
            self.failing.remove(&node);
            return false;
        }
        self.failing.insert(node, piece.name().version).is_none()
    }

    /// A tick. Returns the reports that are due, if bytes of pieces arrived since the last ones.
    pub fn handle_tick(&mut self) -> Vec<KeepReport> {
        self.ticks += 1;
        let arrived = self.arrived();
        if self.ticks < REPORT_TICKS || arrived == self.reported {
            return Vec::new();
        }
        (self.ticks, self.reported) = (0, arrived);
        let mut left = 0;
        let current =
            self.under_way.iter().map(|begun| (begun.piece, begun.requested_by, begun.left()));
        let waiting = self.waiting.iter().map(|(piece, node)| (*piece, *node, piece.length));
        let reports = current.chain(waiting).map(|(piece, requested_by, bytes)| {
            left += bytes;
            KeepReport { piece, requested_by, left }
        });
        reports.collect()
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;

    fn piece(layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef { run: RunId(1), version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    fn begin(queue: &mut KeepQueue) -> Option<(PieceRef, NodeId)> {
        queue.poll().map(|begun| (begun.piece, begun.requested_by))
    }

    #[test]
    fn a_few_pieces_are_kept_at_once_in_their_order_and_each_once() {
        let mut queue = KeepQueue::default();
        let layers = [1, 2, 1, 3, 4];
        for layer in layers {
            assert_eq!(queue.push(piece(layer), NodeId(7)), Ok(()));
        }
        assert_eq!(begin(&mut queue), Some((piece(1), NodeId(7))));
        assert_eq!(begin(&mut queue), Some((piece(2), NodeId(7))));
        assert_eq!(queue.push(piece(1), NodeId(7)), Ok(()));
        assert_eq!(begin(&mut queue), None, "enough are under way");
        queue.note_done(piece(3), NodeId(7), true);
        assert_eq!(begin(&mut queue), None, "that one is not");
        queue.note_done(piece(2), NodeId(7), true);
        assert_eq!(begin(&mut queue), Some((piece(3), NodeId(7))));
        queue.note_done(piece(1), NodeId(7), true);
        assert_eq!(begin(&mut queue), Some((piece(4), NodeId(7))));
        queue.note_done(piece(3), NodeId(7), true);
        assert_eq!(begin(&mut queue), None);
        assert!(queue.is_busy());
        queue.note_done(piece(4), NodeId(7), true);
        assert!(!queue.is_busy());
    }

    #[test]
    fn an_operator_is_warned_of_the_first_piece_of_a_requester_that_is_not_kept() {
        let mut queue = KeepQueue::default();
        let noted =
            [(7, false), (7, false), (8, false), (7, true), (7, true), (7, false), (8, false)];
        let warned = noted.map(|(node, is_kept)| queue.note_done(piece(1), NodeId(node), is_kept));
        assert_eq!(warned, [true, false, true, false, false, true, false]);
    }

    #[test]
    fn requesters_that_are_gone_are_left_out_once_their_last_version_is_collected() {
        let mut queue = KeepQueue::default();
        let of = |version| PieceRef { version: Step(version), ..piece(1) };
        let refer = |queue: &mut KeepQueue, versions: [u64; 2]| {
            queue.note_referred(versions.map(|version| of(version).name().version));
        };
        let fails = |queue: &mut KeepQueue, node| queue.note_done(of(4), NodeId(node), false);
        assert!((1..=100).all(|node| fails(&mut queue, node)), "each is warned of");
        refer(&mut queue, [0, 4]);
        assert!(!queue.note_done(of(8), NodeId(1), false), "an operator knows of it");
        refer(&mut queue, [4, 8]);
        assert_eq!(queue.failing.len(), 100);
        refer(&mut queue, [8, 12]);
        assert_eq!(Vec::from_iter(queue.failing.keys()), [&NodeId(1)], "it requested later ones");
        assert!(!queue.note_done(of(16), NodeId(1), false), "it is failing still");
    }

    #[test]
    fn the_requester_gets_reports_while_work_proceeds_and_none_otherwise() {
        let mut queue = KeepQueue::default();
        queue.push(piece(1), NodeId(7)).expect("space");
        queue.push(piece(2), NodeId(8)).expect("space");
        queue.push(piece(3), NodeId(8)).expect("space");
        let first = queue.poll().expect("it waits");
        first.arrived.add(3);
        let second = queue.poll().expect("it waits");
        second.arrived.add(2);
        assert_eq!([first.needed, second.needed], [Bytes(10), Bytes(17)]);
        let quiet =
            |queue: &mut KeepQueue, ticks| (0..ticks).all(|_| queue.handle_tick().is_empty());
        assert!(quiet(&mut queue, REPORT_TICKS - 1));
        let report = |layer, requested_by, left| KeepReport {
            piece: piece(layer),
            requested_by: NodeId(requested_by),
            left,
        };
        assert_eq!(queue.handle_tick(), [report(1, 7, 7), report(2, 8, 15), report(3, 8, 25)]);
        assert!(quiet(&mut queue, 3 * REPORT_TICKS), "nothing moves");
        second.arrived.add(1);
        assert_eq!(queue.handle_tick(), [report(1, 7, 7), report(2, 8, 14), report(3, 8, 24)]);
        // It was not received whole: what is left of the others becomes less all the same.
        queue.note_done(piece(1), NodeId(7), true);
        let third = queue.poll().expect("it waits");
        assert_eq!(queue.arrived(), 6);
        assert!(quiet(&mut queue, 2 * REPORT_TICKS), "nothing moves");
        third.arrived.add(4);
        assert_eq!(queue.handle_tick(), [report(2, 8, 7), report(3, 8, 13)]);
    }

    #[test]
    fn so_many_pieces_of_a_node_wait() {
        let mut queue = KeepQueue::default();
        for layer in 0..WAITING_MAX as u32 {
            queue.push(PieceRef { layer: LayerId(layer), ..piece(0) }, NodeId(7)).expect("space");
        }
        let another = PieceRef { layer: LayerId(WAITING_MAX as u32), ..piece(0) };
        assert_eq!(queue.push(another, NodeId(7)), Err(KeepQueueRefusal::Full));
        assert_eq!(queue.push(another, NodeId(8)), Ok(()), "another node's wait beside them");
    }
}
