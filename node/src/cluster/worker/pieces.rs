//! Pieces of checkpoints on a worker: written here and kept elsewhere, read here or fetched.

use std::collections::BTreeSet;

use zbelastic_trainer::elastic::{LayerImage, image_bytes};
use zbelastic_trainer::host::HostInput;
use zbelastic_transport::{BulkFetch, PeerIdentity, PeerRole};
use zbelastic_types::{Digest, LayerId, NodeId, Step};

use super::{Arrived, Readiness, Worker};
use crate::cluster::copies::CopyOutcome;
use crate::cluster::keeper::{Kept, PieceBytes, Purpose};
use crate::cluster::keeping::QueueFull;
use crate::cluster::wire::{self, BulkKey, NodeMessage, PieceRef};

/// A piece that was fetched, or not.
pub(super) struct PieceArrived {
    piece: PieceRef,
    purpose: PiecePurpose,
    bytes: Result<Vec<u8>, String>,
}

/// What a piece is fetched for.
#[derive(Clone, Copy)]
enum PiecePurpose {
    /// To go on from.
    Read,
    /// To be kept for another node.
    Keep(NodeId),
}

impl Worker {
    /// The host wants a layer to become durable.
    pub(super) fn write(&mut self, image: LayerImage, digest: Digest) {
        let LayerImage { version, layer, .. } = image;
        let piece = PieceRef { version, layer, digest, length: image_bytes(image.w.len()) };
        let wanted = match &self.readiness {
            Readiness::Ready(job) => job.document.job.config.checkpoint.copies as usize,
            Readiness::Idle | Readiness::Fetching(_) => 0,
        };
        let others = self.peers.keepers(self.seat.contacts(), layer);
        self.copies.begin(piece, wanted, &others);
        self.work.begin_writing(piece);
        if self.keeper.put(piece, PieceBytes::Layer(image), Purpose::Own).is_err() {
            self.give_up(piece, "too much waits for the disk");
        }
    }

    fn give_up(&mut self, piece: PieceRef, why: &str) {
        let what = format!("layer {} of checkpoint {}: {why}", piece.layer, piece.version);
        self.journal.warn(what);
        let _ = self.copies.note_here(piece, false);
        self.tell_written(piece, false);
    }

    pub(super) fn tell_written(&mut self, piece: PieceRef, is_durable: bool) {
        self.work.note_written(piece, is_durable);
        let PieceRef { version, layer, digest, .. } = piece;
        self.tell_device(HostInput::Written { version, layer, digest, is_durable });
    }

    pub(super) fn note_copy(&mut self, piece: PieceRef, node: NodeId, is_kept: bool) {
        match self.copies.note_kept(piece, node, is_kept) {
            Some(CopyOutcome::Durable) => self.tell_written(piece, true),
            Some(CopyOutcome::Failed) => self.tell_written(piece, false),
            None => {}
        }
    }

    /// A piece of this node is on its disk, or not: from there others fetch it who are to keep it.
    fn note_own(&mut self, piece: PieceRef, is_durable: bool) {
        match self.copies.note_here(piece, is_durable) {
            Some(CopyOutcome::Durable) => self.tell_written(piece, true),
            Some(CopyOutcome::Failed) => self.tell_written(piece, false),
            None => {
                for node in self.copies.asked(piece) {
                    self.send_node(node, &NodeMessage::Keep(piece));
                }
            }
        }
    }

    /// The host wants to go on from a layer of a checkpoint.
    pub(super) fn read(&mut self, version: Step, layer: LayerId, digest: Digest) {
        let Some(length) = self.layer_floats(layer).map(image_bytes) else { return };
        let piece = PieceRef { version, layer, digest, length };
        self.reading.insert((version, layer), piece);
        if self.keeper.get(piece).is_err() {
            self.answer_read(piece, None);
        }
    }

    fn answer_read(&mut self, piece: PieceRef, bytes: Option<Vec<u8>>) {
        let PieceRef { version, layer, .. } = piece;
        if self.reading.remove(&(version, layer)).is_some() {
            self.tell_device(HostInput::Read { version, layer, bytes });
        }
    }

    /// Another node wants a piece to be kept here too.
    pub(super) fn keep_for(&mut self, node: NodeId, piece: PieceRef) {
        match self.keeping.push(piece, node) {
            Ok(()) => self.keep_next(),
            Err(QueueFull) => self.send_node(node, &NodeMessage::NotKept(piece)),
        }
    }

    fn keep_next(&mut self) {
        if let Some((piece, node)) = self.keeping.poll() {
            self.fetch_piece(piece, vec![node], PiecePurpose::Keep(node));
        }
    }

    /// What came of a piece that another node wants to be kept here.
    fn answer_keep(&mut self, node: NodeId, piece: PieceRef, answer: &NodeMessage) {
        self.send_node(node, answer);
        self.keeping.note_done(piece, node);
        self.keep_next();
    }

    /// Tells those whose pieces wait here that they get on, and gives up own ones that do not.
    pub(super) fn look_at_pieces(&mut self, done: u64) {
        for (piece, node) in self.keeping.handle_tick(done) {
            self.send_node(node, &NodeMessage::Keeping(piece));
        }
        let written = self.keeper.written().total();
        if std::mem::replace(&mut self.written_seen, written) != written {
            self.copies.note_written();
        }
        for piece in self.copies.handle_tick() {
            self.give_up(piece, "neither this node nor one that was asked to keep it gets on");
        }
    }

    fn fetch_piece(&mut self, piece: PieceRef, holders: Vec<NodeId>, purpose: PiecePurpose) {
        let progress = Some(self.work.pieces().shared());
        let key = wire::encode(&BulkKey::Piece(piece));
        let fetch = BulkFetch { holders, key, length: piece.length, progress };
        let (transport, arrivals) = (self.transport.clone(), self.arrivals.clone());
        tokio::spawn(async move {
            let bytes = transport.fetch_bulk(fetch).await.map_err(|error| error.to_string());
            let _ = arrivals.send(Arrived::Piece(PieceArrived { piece, purpose, bytes })).await;
        });
    }

    pub(super) fn handle_piece(&mut self, arrived: PieceArrived) {
        let PieceArrived { piece, purpose, bytes } = arrived;
        match (purpose, bytes) {
            (PiecePurpose::Read, Ok(bytes)) => self.answer_read(piece, Some(bytes)),
            (PiecePurpose::Read, Err(error)) => {
                self.journal.warn(format!("nobody has {piece:?}: {error}"));
                self.answer_read(piece, None);
            }
            (PiecePurpose::Keep(node), Ok(bytes)) => {
                let bytes = PieceBytes::Encoded(bytes);
                if self.keeper.put(piece, bytes, Purpose::For(node)).is_err() {
                    self.answer_keep(node, piece, &NodeMessage::NotKept(piece));
                }
            }
            (PiecePurpose::Keep(node), Err(error)) => {
                self.journal.warn(format!("nothing is kept for node {node}: {error}"));
                self.answer_keep(node, piece, &NodeMessage::NotKept(piece));
            }
        }
    }

    pub(super) fn handle_kept(&mut self, kept: Kept) {
        match kept {
            Kept::Put { piece, purpose: Purpose::Own, failure } => {
                if let Some(failure) = &failure {
                    self.journal.warn(format!("layer {} is not kept: {failure}", piece.layer));
                }
                self.note_own(piece, failure.is_none());
            }
            Kept::Put { piece, purpose: Purpose::For(node), failure } => {
                let answer = match failure {
                    None => NodeMessage::Kept(piece),
                    Some(failure) => {
                        self.journal.warn(format!("nothing is kept for node {node}: {failure}"));
                        NodeMessage::NotKept(piece)
                    }
                };
                self.answer_keep(node, piece, &answer);
            }
            Kept::Got { piece, bytes: Some(bytes) } => self.answer_read(piece, Some(bytes)),
            Kept::Got { piece, bytes: None } => {
                let holders = self.peers.holders(self.seat.contacts());
                self.fetch_piece(piece, holders, PiecePurpose::Read);
            }
            Kept::Failed { failure } => self.journal.warn(format!("the store: {failure}")),
            Kept::Collected { count } => {
                if count > 0 {
                    self.journal.log(format!("{count} things of old checkpoints removed"));
                }
            }
        }
    }

    /// A controller says which versions are referred to.
    pub(super) fn collect(&mut self, from: PeerIdentity, kept: Vec<Step>) {
        if from.role == PeerRole::Controller {
            // If there is no room now, the next checkpoint says it again.
            let _ = self.keeper.collect(BTreeSet::from_iter(kept));
        }
    }
}
