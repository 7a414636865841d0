//! Pieces of checkpoints on a controller: kept for workers, named in manifests, removed.

use std::sync::Arc;

use zbelastic_checkpoint::{CheckpointId, Manifest, PieceName};
use zbelastic_consensus::checkpoint::CheckpointRecord;
use zbelastic_consensus::class::DeviceClass;
use zbelastic_consensus::codec;
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::Role;
use zbelastic_policy::data::{DataName, expected_name};
use zbelastic_types::{Bytes, LayerId, NodeId, Step};

use super::runs::digest_of;
use super::{ControllerCompletion, ControllerNode};
use crate::api::{EventKind, HexDigest};
use crate::cluster::checkpoint_thread::StoreEvent;
use crate::cluster::data::damaged_text;
use crate::cluster::document::JobDocument;
use crate::cluster::keep_queue::KeepQueueFull;
use crate::cluster::keep_rule::check_keep;
use crate::cluster::piece_fetch::{PieceFetchError, fetch_piece};
use crate::cluster::recovery::CheckpointDocument;
use crate::cluster::scrub::{damaged_piece_text, repair, repair_text};
use crate::cluster::wire::{FreedSpace, NodeMessage, PieceRef, SaveFailed, StoreReferences};

/// A piece that was fetched, or not.
pub(super) struct PieceFetchResult {
    piece: PieceRef,
    requested_by: NodeId,
    outcome: Result<(), PieceFetchError>,
}

impl ControllerNode {
    /// Keeps checkpoints in the folder that the job names.
    pub(super) fn use_store(&mut self, job: &JobDocument) {
        let dir = job.config.checkpoint.folder.as_deref();
        let node_record = &self.setup.node_record;
        match self.setup.store_locations.of_job(dir, node_record.cluster, node_record.node) {
            Ok(folder) => {
                if self.checkpoint_thread.use_store(folder).is_err() {
                    self.journal.warn("checkpoint.dir: too much waits for the disk".to_owned());
                }
            }
            Err(error) => self.journal.warn(format!("checkpoint.dir: {error}")),
        }
    }

    /// A worker requests that a piece is kept here too.
    pub(super) fn keep_for(&mut self, node: NodeId, piece: PieceRef) {
        let sealed = self.core.state().open_turn().step;
        if let Err(refusal) = check_keep(piece, self.run_log.layers_of_run(), sealed) {
            self.journal.log(format!("nothing is kept for node {node}: {refusal}"));
            return self.send_node(node, &NodeMessage::NotKept(piece));
        }
        match self.keeping.push(piece, node) {
            Ok(()) => self.keep_next(),
            Err(KeepQueueFull) => self.send_node(node, &NodeMessage::NotKept(piece)),
        }
    }

    /// Answers a worker that requested a piece to be kept here.
    fn answer_keep(&mut self, node: NodeId, piece: PieceRef, answer: &NodeMessage) {
        self.send_node(node, answer);
        self.keeping.note_done(piece, node);
        self.keep_next();
    }

    /// Reports to the nodes whose pieces wait here that they get on.
    pub(super) fn report_piece_progress(&mut self) {
        let done = self.kept_bytes.total() + self.checkpoint_thread.moved().total();
        for (piece, node) in self.keeping.handle_tick(done) {
            self.send_node(node, &NodeMessage::Keeping(piece));
        }
    }

    fn keep_next(&mut self) {
        let Some((piece, node)) = self.keeping.poll() else { return };
        let transport = self.transport.clone();
        let checkpoint_thread = self.checkpoint_thread.clone();
        let progress = self.kept_bytes.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let outcome = fetch_piece(&transport, &checkpoint_thread, piece, node, progress).await;
            let result = PieceFetchResult { piece, requested_by: node, outcome };
            let _ = completions.send(ControllerCompletion::Piece(result)).await;
        });
    }

    pub(super) fn handle_piece(&mut self, result: PieceFetchResult) {
        let PieceFetchResult { piece, requested_by, outcome } = result;
        let answer = match outcome {
            Ok(()) => NodeMessage::Kept(piece),
            Err(error) => {
                self.journal.warn(format!("nothing is kept for node {requested_by}: {error}"));
                NodeMessage::NotKept(piece)
            }
        };
        self.answer_keep(requested_by, piece, &answer);
    }

    /// A worker reports that a checkpoint is not completed, or is on fewer disks than it should
    /// be. The leader warns of each once.
    pub(super) fn note_save_failed(&mut self, node: NodeId, failed: SaveFailed) {
        let SaveFailed { version, layer, copies, wanted } = failed;
        let is_pending = self.core.state().pending().iter().any(|found| found.version == version);
        let has_none = copies == 0;
        let is_known = |(of, had_none): (Step, bool)| of == version && (had_none || !has_none);
        if !self.leads() || !is_pending || self.save_failed.is_some_and(is_known) {
            return;
        }
        self.save_failed = Some((version, has_none));
        let last = self.core.state().checkpoints().last();
        let last = last
            .map_or("none before it".to_owned(), |found| format!("the last is {}", found.version));
        let subject = match has_none {
            true => format!("checkpoint {version} failed ({last})"),
            false => format!("checkpoint {version} has too few copies"),
        };
        self.journal.warn(format!(
            "{subject}: of layer {layer} of node {node} {copies} of {wanted} copies could be written; free \
             disk space there and on the nodes that keep copies"
        ));
    }

    pub(super) fn handle_store_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Failed { failure } => self.journal.warn(format!("the store: {failure}")),
            StoreEvent::Collected(FreedSpace { chunks: 0, .. }) => {}
            StoreEvent::Collected(FreedSpace { chunks, bytes }) => {
                let bytes = Bytes(bytes);
                self.journal.log(format!("old checkpoints: {chunks} chunks removed, {bytes}"));
            }
            StoreEvent::Rotten { piece, why } => {
                self.journal.warn(damaged_piece_text(piece, &why));
                let others = self.other_holders();
                let parts = (self.transport.clone(), self.checkpoint_thread.clone());
                repair(piece, parts, others, self.kept_bytes.clone());
            }
            StoreEvent::RottenData(found) => {
                let name = expected_name(found, &self.data_names().unwrap_or_default());
                self.journal.warn(damaged_text(self.setup.node, name));
                self.fetch(name, self.other_holders());
            }
            StoreEvent::Mended { piece, outcome } => match repair_text(piece, outcome) {
                Ok(text) => self.journal.log(text),
                Err(text) => self.journal.warn(text),
            },
            // A controller has no pieces of its own, nor does it continue from any.
            StoreEvent::Put { .. } | StoreEvent::Got { .. } => {}
        }
    }

    /// A checkpoint is complete: its manifest is kept, and what older ones alone needed is removed.
    pub(super) fn note_checkpoint(&mut self, version: Step) {
        let Some(manifest) = self.manifest(version) else { return };
        if let Err(error) = self.checkpoint_thread.put_manifest(manifest) {
            self.journal.warn(error.to_string());
        }
        self.collect_unused();
    }

    /// Removes what is not referred to, on every node. Only the leader sends this: another
    /// controller may not have applied yet what refers to a piece.
    pub(super) fn collect_unused(&mut self) {
        if !self.leads() {
            return;
        }
        let referred = self.referred();
        for node in self.other_holders() {
            self.send_node(node, &NodeMessage::Collect(referred.clone()));
        }
        self.collect_local(referred);
    }

    pub(super) fn collect_local(&mut self, referred: StoreReferences) {
        if let Err(error) = self.checkpoint_thread.collect(referred) {
            self.journal.warn(error.to_string());
        }
    }

    /// Checkpoints, versions that are to become some, and data that runs refer to.
    pub(super) fn referred(&self) -> StoreReferences {
        let state = self.core.state();
        let data = self.data_names();
        let data = data.map(|names| names.into_iter().map(|name| name.hash).collect());
        let kept = state.ended().iter().map(|ended| {
            let run = ended.run();
            let version = ended.checkpoint.version;
            CheckpointId { run, version }
        });
        let mut referred = StoreReferences { versions: kept.collect(), data };
        let Some(job) = state.job() else {
            // Nothing of any run is newer than the beginning of the next.
            let run = state.training().runs().run_next();
            referred.versions.push(CheckpointId { run, version: Step(0) });
            return referred;
        };
        let checkpoints = state.checkpoints().iter().map(|checkpoint| checkpoint.version);
        let pending = state.pending().iter().map(|pending| pending.version);
        let of_job = [Step(0)].into_iter().chain(checkpoints).chain(pending);
        let named = |version| CheckpointId { run: job.spec.run_of(version), version };
        referred.versions.extend(of_job.map(named));
        referred
    }

    /// Texts and weights of all runs, unless this version cannot read the document of one.
    fn data_names(&self) -> Option<Vec<DataName>> {
        let state = self.core.state();
        let specs = state.ended().iter().map(|ended| &ended.spec);
        let specs = specs.chain(state.job().map(|job| &job.spec));
        let names = specs.map(|spec| Some(JobDocument::of_job(spec).ok()?.job.data()));
        Some(names.collect::<Option<Vec<_>>>()?.concat())
    }

    fn manifest(&self, version: Step) -> Option<Manifest> {
        let state = self.core.state();
        let record = state.checkpoints().iter().find(|found| found.version == version)?;
        manifest_of(&state.job()?.spec, record, state.training().runs().class())
    }

    /// The manifests of runs that ended.
    pub(super) fn ended_manifests(&self) -> Vec<Manifest> {
        let ended = self.core.state().ended().iter();
        ended.filter_map(|run| manifest_of(&run.spec, &run.checkpoint, run.class)).collect()
    }

    /// The digest of the state at a version, if there is a checkpoint of it.
    pub(super) fn state_digest(&self, version: Step) -> Option<HexDigest> {
        let state = self.core.state();
        let record = state.checkpoints().iter().find(|found| found.version == version)?;
        Some(digest_of(record))
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

    /// The same without this node.
    pub(super) fn other_holders(&self) -> Vec<NodeId> {
        let mut holders = self.holders();
        holders.retain(|node| *node != self.setup.node);
        holders
    }
}

/// What a recovery continues from. Of a document that this version cannot read there is none.
fn manifest_of(
    spec: &Arc<JobSpec>,
    record: &CheckpointRecord,
    class: Option<DeviceClass>,
) -> Option<Manifest> {
    let job = JobDocument::of_job(spec).ok()?.job;
    let version = CheckpointId { run: spec.run, version: record.version };
    let name =
        |(layer, digest): (u32, &_)| PieceName { version, layer: LayerId(layer), digest: *digest };
    let document = CheckpointDocument { spec: Arc::clone(spec), record: record.clone(), class };
    Some(Manifest {
        version,
        layers: (0..).zip(&record.layers).map(name).collect(),
        document: codec::encode(&document),
        data: job.text.hash,
        program: job.program,
        seed: job.config.seed,
    })
}
