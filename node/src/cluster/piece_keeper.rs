//! Pieces of checkpoints that this node keeps because another one requests it: fetched a few at a
//! time, and answered when they are durable here.

use zbelastic_checkpoint::{CheckpointId, CheckpointStore};
use zbelastic_trainer::elastic::ChainingValue;
use zbelastic_types::NodeId;
use zbelastic_wire::{NodeMessage, PieceRef};

use super::background::BackgroundTasks;
use super::checkpoint_thread::CheckpointThread;
use super::journal::Journal;
use super::keep_queue::{BegunPiece, KeepQueue, KeepReport};
use super::keep_rule::KeepRefusal;
use super::outbox::Outbox;
use super::piece_fetch::{PieceFetchError, fetch_piece};

/// The result of fetching a piece that is to be kept for another node.
pub struct PieceFetchResult {
    /// The piece that was fetched, or not.
    pub piece: PieceRef,
    /// The node that requested it to be kept.
    pub requested_by: NodeId,
    /// The chaining values of its moments, if it is durable here and was fetched for that.
    pub outcome: Result<Vec<ChainingValue>, PieceFetchError>,
}

/// Keeps pieces for other nodes.
#[derive(Default)]
pub struct PieceKeeper {
    queue: KeepQueue,
}

impl PieceKeeper {
    /// Bytes of pieces that arrived to be kept.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.queue.arrived()
    }

    /// Whether a piece is being fetched.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.queue.is_busy()
    }

    /// Another node requests that a piece is kept here too. It is answered at once if it is not to
    /// be kept, or if too many wait.
    pub fn request(
        &mut self,
        node: NodeId,
        piece: PieceRef,
        check: Result<(), KeepRefusal>,
        (outbox, journal): (&mut Outbox, &mut Journal),
    ) {
        let refused = match check {
            Ok(()) => self.queue.push(piece, node).map_err(|refusal| refusal.to_string()),
            Err(refusal) => Err(refusal.to_string()),
        };
        if let Err(why) = refused {
            journal.log(format!("nothing is kept for node {node}: {why}"));
            outbox.send(node, NodeMessage::NotKept(piece));
        }
    }

    /// So many members may request pieces. Those that lie in the store before the first request count.
    pub fn note_members(&mut self, members: usize, checkpoint_thread: &CheckpointThread) {
        self.queue.note_members(members, || checkpoint_thread.store()?.names().ok());
    }

    /// The cluster refers to these versions; older ones are removed here.
    pub fn note_referred(&mut self, versions: impl IntoIterator<Item = CheckpointId>) {
        self.queue.note_referred(versions);
    }

    /// Begins to fetch pieces that wait, as many as are fetched at once.
    pub fn fetch_next<C>(&mut self, tasks: &BackgroundTasks<C>)
    where
        C: From<PieceFetchResult> + Send + 'static,
    {
        while let Some(begun) = self.queue.poll() {
            let transport = tasks.transport().clone();
            let checkpoint_thread = tasks.checkpoint_thread().clone();
            tasks.spawn(async move {
                let outcome = fetch_piece(&transport, &checkpoint_thread, &begun).await;
                let BegunPiece { piece, requested_by, .. } = begun;
                C::from(PieceFetchResult { piece, requested_by, outcome })
            });
        }
    }

    /// A piece was fetched, or not: its requester is answered.
    pub fn note_fetched(
        &mut self,
        result: PieceFetchResult,
        (outbox, journal): (&mut Outbox, &mut Journal),
    ) {
        let PieceFetchResult { piece, requested_by, outcome } = result;
        let is_first = self.queue.note_done(piece, requested_by, outcome.is_ok());
        let answer = match outcome {
            Ok(_) => NodeMessage::Kept(piece),
            Err(error) => {
                let note = if is_first { Journal::warn } else { Journal::log };
                note(journal, format!("nothing is kept for node {requested_by}: {error}"));
                NodeMessage::NotKept(piece)
            }
        };
        outbox.send(requested_by, answer);
    }

    /// Reports to the owners of pieces that wait here that these make progress, if they do and not
    /// only ticks pass.
    pub fn handle_tick(&mut self, outbox: &mut Outbox) {
        for report in self.queue.handle_tick() {
            let KeepReport { piece, requested_by, left } = report;
            outbox.send(requested_by, NodeMessage::KeepingLeft { piece, left });
            outbox.send(requested_by, NodeMessage::Keeping(piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;
    use crate::cluster::journal::LogEcho;

    fn piece(layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef { run: RunId(1), version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    #[test]
    fn a_requester_is_answered_once_when_its_piece_is_refused_fetched_or_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let mut journal = Journal::open(&path, LogEcho::No).expect("room");
        let mut outbox = Outbox::default();
        let mut keeper = PieceKeeper::default();
        keeper.request(NodeId(5), piece(0), Err(KeepRefusal::NoJob), (&mut outbox, &mut journal));
        assert_eq!(outbox.take(), [(NodeId(5), NodeMessage::NotKept(piece(0)))]);
        for layer in [1, 2] {
            keeper.request(NodeId(5), piece(layer), Ok(()), (&mut outbox, &mut journal));
        }
        assert_eq!(outbox.take(), [], "it is answered when the piece is here");
        let outcomes = [(1, Ok(Vec::new())), (2, Err(PieceFetchError::NoStore))];
        for (layer, outcome) in outcomes {
            let begun = keeper.queue.poll().map(|begun| (begun.piece, begun.requested_by));
            assert_eq!(begun, Some((piece(layer), NodeId(5))));
            let result = PieceFetchResult { piece: piece(layer), requested_by: NodeId(5), outcome };
            keeper.note_fetched(result, (&mut outbox, &mut journal));
        }
        let expected = [NodeMessage::Kept(piece(1)), NodeMessage::NotKept(piece(2))];
        assert_eq!(outbox.take(), expected.map(|message| (NodeId(5), message)));
        assert!(!keeper.is_busy());
    }
}
