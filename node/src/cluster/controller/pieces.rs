//! Pieces of checkpoints on a controller: kept for workers, named in manifests, let go of.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbelastic_checkpoint::{Manifest, PieceName};
use zbelastic_consensus::codec;
use zbelastic_consensus::member::Role;
use zbelastic_transport::BulkFetch;
use zbelastic_types::{LayerId, NodeId, Step};

use super::{Arrived, Controller, referred};
use crate::api::{EventKind, HexDigest};
use crate::cluster::keeper::{Kept, PieceBytes, Purpose};
use crate::cluster::keeping::QueueFull;
use crate::cluster::recovery::CheckpointDocument;
use crate::cluster::wire::{self, BulkKey, NodeMessage, PieceRef};

/// A piece that was fetched, or not.
pub(super) struct PieceArrived {
    piece: PieceRef,
    wanted_by: NodeId,
    bytes: Option<Vec<u8>>,
}

impl Controller {
    /// A worker wants a piece to be kept here too.
    pub(super) fn keep_for(&mut self, node: NodeId, piece: PieceRef) {
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
        let done = self.kept_bytes.total() + self.keeper.written().total();
        for (piece, node) in self.keeping.handle_tick(done) {
            self.send_node(node, &NodeMessage::Keeping(piece));
        }
    }

    fn keep_next(&mut self) {
        let Some((piece, node)) = self.keeping.poll() else { return };
        let progress = Some(self.kept_bytes.shared());
        let key = wire::encode(&BulkKey::Piece(piece));
        let fetch = BulkFetch { holders: vec![node], key, length: piece.length, progress };
        let (transport, arrivals) = (self.transport.clone(), self.arrivals.clone());
        tokio::spawn(async move {
            let bytes = transport.fetch_bulk(fetch).await.ok();
            let arrived = PieceArrived { piece, wanted_by: node, bytes };
            let _ = arrivals.send(Arrived::Piece(arrived)).await;
        });
    }

    pub(super) fn handle_piece(&mut self, arrived: PieceArrived) {
        let PieceArrived { piece, wanted_by, bytes } = arrived;
        let put =
            |bytes| self.keeper.put(piece, PieceBytes::Encoded(bytes), Purpose::For(wanted_by));
        let kept = bytes.map(put);
        if !matches!(kept, Some(Ok(()))) {
            self.answer_keep(wanted_by, piece, &NodeMessage::NotKept(piece));
        }
    }

    pub(super) fn handle_kept(&mut self, kept: Kept) {
        match kept {
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
            Kept::Failed { failure } => self.journal.warn(format!("the store: {failure}")),
            Kept::Collected { count } => {
                if count > 0 {
                    self.journal.log(format!("{count} things of old checkpoints removed"));
                }
            }
            Kept::Put { purpose: Purpose::Own, .. } | Kept::Got { .. } => {}
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
