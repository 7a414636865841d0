//! Pieces of checkpoints on a controller: kept for workers, named in manifests, let go of.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbelastic_checkpoint::{Manifest, PieceName};
use zbelastic_consensus::codec;
use zbelastic_consensus::member::Role;
use zbelastic_types::{Bytes, LayerId, NodeId, Step};

use super::{Arrived, Controller, referred};
use crate::api::{EventKind, HexDigest};
use crate::cluster::keep_rule::check_keep;
use crate::cluster::keeper::Kept;
use crate::cluster::keeping::QueueFull;
use crate::cluster::piece_sink::{KeepError, keep};
use crate::cluster::recovery::CheckpointDocument;
use crate::cluster::wire::{Freed, NodeMessage, PieceRef, SaveFailed};

/// A piece that was fetched, or not.
pub(super) struct PieceArrived {
    piece: PieceRef,
    wanted_by: NodeId,
    outcome: Result<(), KeepError>,
}

impl Controller {
    /// A worker wants a piece to be kept here too.
    pub(super) fn keep_for(&mut self, node: NodeId, piece: PieceRef) {
        let sealed = self.core.state().open_turn().step;
        if let Err(refusal) = check_keep(piece, self.chronicle.layer_bytes(), sealed) {
            self.journal.log(format!("nothing is kept for node {node}: {refusal}"));
            return self.send_node(node, &NodeMessage::NotKept(piece));
        }
        match self.keeping.push(piece, node) {
            Ok(()) => self.keep_next(),
            Err(QueueFull) => self.send_node(node, &NodeMessage::NotKept(piece)),
        }
    }

    /// What came of a piece that a worker wants to be kept here.
    fn answer_keep(&mut self, node: NodeId, piece: PieceRef, answer: &NodeMessage) {
        self.send_node(node, answer);
        self.keeping.note_done(piece, node);
        self.keep_next();
    }

    /// Tells those whose pieces wait here that they get on.
    pub(super) fn look_at_pieces(&mut self) {
        let done = self.kept_bytes.total() + self.keeper.moved().total();
        for (piece, node) in self.keeping.handle_tick(done) {
            self.send_node(node, &NodeMessage::Keeping(piece));
        }
    }

    fn keep_next(&mut self) {
        let Some((piece, node)) = self.keeping.poll() else { return };
        let (transport, keeper) = (self.transport.clone(), self.keeper.clone());
        let (progress, arrivals) = (self.kept_bytes.clone(), self.arrivals.clone());
        tokio::spawn(async move {
            let outcome = keep(&transport, &keeper, piece, node, progress).await;
            let arrived = PieceArrived { piece, wanted_by: node, outcome };
            let _ = arrivals.send(Arrived::Piece(arrived)).await;
        });
    }

    pub(super) fn handle_piece(&mut self, arrived: PieceArrived) {
        let PieceArrived { piece, wanted_by, outcome } = arrived;
        let answer = match outcome {
            Ok(()) => NodeMessage::Kept(piece),
            Err(error) => {
                self.journal.warn(format!("nothing is kept for node {wanted_by}: {error}"));
                NodeMessage::NotKept(piece)
            }
        };
        self.answer_keep(wanted_by, piece, &answer);
    }

    /// A worker says that a checkpoint does not come about. People hear of each once.
    pub(super) fn note_save_failed(&mut self, node: NodeId, failed: SaveFailed) {
        let SaveFailed { version, layer, copies, wanted } = failed;
        let is_pending = self.core.state().pending().iter().any(|found| found.version == version);
        if !self.leads() || !is_pending || self.save_failed.replace(version) == Some(version) {
            return;
        }
        let last = self.core.state().checkpoints().last();
        let last = last
            .map_or("none before it".to_owned(), |found| format!("the last is {}", found.version));
        self.journal.warn(format!(
            "checkpoint {version} failed ({last}): of layer {layer} of node {node} {copies} of {wanted} \
             copies could be written; free disk space there and on who keeps copies"
        ));
    }

    pub(super) fn handle_kept(&mut self, kept: Kept) {
        match kept {
            Kept::Failed { failure } => self.journal.warn(format!("the store: {failure}")),
            Kept::Collected(Freed { chunks: 0, .. }) => {}
            Kept::Collected(Freed { chunks, bytes }) => {
                let bytes = Bytes(bytes);
                self.journal.log(format!("old checkpoints: {chunks} chunks removed, {bytes}"));
            }
            // Pieces of its own no controller has, nor does it go on from any.
            Kept::Put { .. } | Kept::Got { .. } => {}
        }
    }

    /// A checkpoint is there: its manifest is kept, and what older ones alone needed goes.
    pub(super) fn note_checkpoint(&mut self, version: Step) {
        let Some(manifest) = self.manifest(version) else { return };
        if let Err(error) = self.keeper.put_manifest(manifest) {
            self.journal.warn(error.to_string());
        }
        let kept = referred(&self.core);
        let newest = kept.iter().copied().collect::<Vec<_>>();
        self.collect_here(newest.clone());
        if self.leads() {
            let workers: Vec<NodeId> = self.core.state().live_workers().map(|w| w.0.node).collect();
            for node in workers {
                self.send_node(node, &NodeMessage::Collect { kept: newest.clone() });
            }
        }
    }

    pub(super) fn collect_here(&mut self, kept: Vec<Step>) {
        if let Err(error) = self.keeper.collect(BTreeSet::from_iter(kept)) {
            self.journal.warn(error.to_string());
        }
    }

    fn manifest(&self, version: Step) -> Option<Manifest> {
        let state = self.core.state();
        let record = state.checkpoints().iter().find(|found| found.version == version)?;
        let job = self.chronicle.job()?;
        let spec = &state.job()?.spec;
        let name = |(layer, digest): (u32, &_)| PieceName {
            version,
            layer: LayerId(layer),
            digest: *digest,
        };
        Some(Manifest {
            version,
            layers: (0..).zip(&record.layers).map(name).collect(),
            document: codec::encode(&CheckpointDocument {
                spec: Arc::clone(spec),
                record: record.clone(),
                class: state.class(),
            }),
            data: job.job.text.hash,
            program: job.job.program.clone(),
            seed: job.job.config.seed,
        })
    }

    /// The digest of the state at a version, if there is a checkpoint of it.
    pub(super) fn state_digest(&self, version: Step) -> Option<HexDigest> {
        let state = self.core.state();
        let record = state.checkpoints().iter().find(|found| found.version == version)?;
        let layers = record.layers.iter().copied();
        let digest = zbelastic_trainer::digest::state_digest(layers, record.ledger.updates());
        Some(HexDigest(zbelastic_types::Digest(digest.0)))
    }

    /// An event that names the state's digest, where it is known.
    pub(super) fn with_digest(&self, kind: EventKind) -> EventKind {
        if let EventKind::Done { step, digest: None } = kind {
            EventKind::Done { step, digest: self.state_digest(Step(step)) }
        } else {
            kind
        }
    }

    /// Members that may hold pieces.
    pub(super) fn holders(&self) -> Vec<NodeId> {
        let members = self.core.state().members().iter();
        let live = members.filter(|(_, member)| member.is_live());
        let keeps = |role: Role| match role {
            Role::Controller | Role::Worker => true,
        };
        live.filter(|(_, member)| keeps(member.role)).map(|(node, _)| *node).collect()
    }
}
