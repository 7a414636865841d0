//! Pieces of checkpoints that other nodes request this node to keep: fetched and written one after
//! the other, so that no more than one layer is in memory for it, while the requesters receive
//! progress reports.

use std::collections::VecDeque;

use zbelastic_checkpoint::CheckpointId;
use zbelastic_types::NodeId;

use crate::keep_quota::{KeepQuota, QuotaExceeded};
use crate::piece::PieceRef;

/// Pieces of one requester that wait at once: the layers of two checkpoints of the largest model.
/// Another one is refused.
const WAITING_MAX: usize = 2048;
/// Ticks between two progress reports to the requesters.
const REPORT_TICKS: u32 = 100;

/// Pieces to be kept, and the node that requested each.
#[derive(Debug, Default)]
pub struct KeepQueue {
    quota: KeepQuota,
    waiting: VecDeque<(PieceRef, NodeId)>,
    under_way: Option<(PieceRef, NodeId)>,
    /// Bytes of such pieces that had arrived when the one under way was begun, and by now.
    began_at: u64,
    arrived: u64,
    /// Bytes that had arrived at the last report.
    reported: u64,
    ticks: u32,
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
        if self.under_way == Some(request) || self.waiting.contains(&request) {
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

    /// The cluster refers to these versions; older ones are removed here.
    pub fn note_referred(&mut self, versions: impl IntoIterator<Item = CheckpointId>) {
        self.quota.note_referred(versions);
    }

    /// The next piece to fetch, if none is under way.
    pub fn poll(&mut self) -> Option<(PieceRef, NodeId)> {
        if self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.began_at = self.arrived;
        self.under_way
    }

    /// Whether a piece is under way.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// A piece is kept, or will not be.
    pub fn note_done(&mut self, piece: PieceRef, node: NodeId) {
        self.under_way.take_if(|under_way| *under_way == (piece, node));
    }

    /// A tick, and the bytes of pieces that arrived here to be kept by now: of nothing else, or a
    /// piece that never comes would be waited for as long as anything does. Returns the reports that
    /// are due.
    pub fn handle_tick(&mut self, arrived: u64) -> Vec<KeepReport> {
        self.ticks += 1;
        self.arrived = arrived;
        if self.ticks < REPORT_TICKS || arrived == self.reported {
            return Vec::new();
        }
        (self.ticks, self.reported) = (0, arrived);
        let mut left = 0;
        let of_current = arrived - self.began_at;
        let current = self
            .under_way
            .iter()
            .map(|(piece, node)| (*piece, *node, piece.length.saturating_sub(of_current)));
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

    #[test]
    fn pieces_are_kept_one_after_the_other_and_each_once() {
        let mut queue = KeepQueue::default();
        for layer in [1, 2, 1] {
            assert_eq!(queue.push(piece(layer), NodeId(7)), Ok(()));
        }
        assert_eq!(queue.poll(), Some((piece(1), NodeId(7))));
        assert_eq!(queue.push(piece(1), NodeId(7)), Ok(()));
        assert_eq!(queue.poll(), None, "one is under way");
        queue.note_done(piece(2), NodeId(7));
        assert_eq!(queue.poll(), None, "another one is");
        queue.note_done(piece(1), NodeId(7));
        assert_eq!(queue.poll(), Some((piece(2), NodeId(7))));
        queue.note_done(piece(2), NodeId(7));
        assert_eq!(queue.poll(), None);
    }

    #[test]
    fn the_requester_gets_reports_while_work_proceeds_and_none_otherwise() {
        let mut queue = KeepQueue::default();
        queue.push(piece(1), NodeId(7)).expect("space");
        queue.push(piece(2), NodeId(8)).expect("space");
        queue.poll();
        assert!((1..REPORT_TICKS).all(|_| queue.handle_tick(5).is_empty()));
        let report = |layer, requested_by, left| KeepReport {
            piece: piece(layer),
            requested_by: NodeId(requested_by),
            left,
        };
        assert_eq!(queue.handle_tick(5), [report(1, 7, 5), report(2, 8, 15)]);
        assert!((0..3 * REPORT_TICKS).all(|_| queue.handle_tick(5).is_empty()), "nothing moves");
        assert_eq!(queue.handle_tick(6), [report(1, 7, 4), report(2, 8, 14)]);
        queue.note_done(piece(1), NodeId(7));
        queue.poll();
        assert!((1..REPORT_TICKS).all(|_| queue.handle_tick(9).is_empty()));
        assert_eq!(queue.handle_tick(9), [report(2, 8, 7)]);
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
