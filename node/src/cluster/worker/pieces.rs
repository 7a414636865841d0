//! Pieces of checkpoints on a worker: written here and kept elsewhere, read here or fetched.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tokio::sync::watch;
use zbelastic_consensus::class::DeviceClass;
use zbelastic_consensus::member::Resources;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::pre_copy::needed_at;
use zbelastic_machine::layer_fetch::{PartialLayer, UnfinishedLayer, fetch_image};
use zbelastic_machine::layer_snapshot::LayerSnapshot;
use zbelastic_policy::data::expected_name;
use zbelastic_policy::piece_reads::PieceReads;
use zbelastic_policy::roster::Roster;
use zbelastic_trainer::elastic::{LayerImage, LoadedLayer, image_bytes, layer_digest};
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_types::{Bytes, Digest, Generation, LayerId, NodeId, RunId, Step};
use zbelastic_wire::{
    self as wire, BulkKey, FreedSpace, NodeMessage, PieceRef, SaveFailed, StoreReferences,
};

use super::job::{ActiveJob, WorkerJob, fetch_again};
use super::ports::{WorkerCompletion, WorkerPorts};
use crate::cluster::SPEED_OF_A_THREAD;
use crate::cluster::blob_registry::BlobRegistry;
use crate::cluster::checkpoint_thread::StoreEvent;
use crate::cluster::data::damaged_text;
use crate::cluster::keep_rule::check_keep;
use crate::cluster::piece_copies::{PieceCopies, PieceCopyAction};
use crate::cluster::piece_keeper::{PieceFetchResult, PieceKeeper};
use crate::cluster::scrub::{damaged_piece_text, repair, repair_text};
use zbelastic_policy::tick::milliticks;

/// A layer of a checkpoint, the plan under which it was sealed, and the run that was loaded then.
pub(super) struct SealedLayer {
    snapshot: Arc<LayerSnapshot>,
    generation: Generation,
    run: RunId,
}

/// Layers of checkpoints that wait to be hashed: one after the other, beside the event loop and the
/// device. A layer that was sealed under another plan or in another run leaves the queue when a
/// later one comes, so there are no more than a runtime writes at once, the layers of two versions.
#[derive(Default)]
pub(super) struct HashQueue {
    waiting: VecDeque<SealedLayer>,
    is_busy: bool,
}

impl HashQueue {
    /// A layer is to be hashed.
    fn push(&mut self, sealed: SealedLayer) {
        let is_of =
            |old: &SealedLayer| (old.run, old.generation) == (sealed.run, sealed.generation);
        self.waiting.retain(is_of);
        self.waiting.push_back(sealed);
    }

    /// The next layer to be hashed, unless one is.
    fn poll(&mut self) -> Option<SealedLayer> {
        let next = if self.is_busy { None } else { self.waiting.pop_front() };
        self.is_busy |= next.is_some();
        next
    }

    /// Whether a layer is being hashed.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// A layer was hashed.
    fn note_done(&mut self) {
        self.is_busy = false;
    }
}

/// The result of hashing or reading a piece.
pub(super) enum PieceTaskResult {
    /// The layer was hashed, and is to become durable.
    Hashed { sealed: SealedLayer, digest: io::Result<Digest> },
    /// A piece was read from the store or from another node, to continue from it.
    Read { piece: PieceRef, read: Result<Box<LoadedLayer>, UnfinishedLayer> },
}

/// The pieces of checkpoints that a worker writes, reads, and keeps for others.
pub(super) struct WorkerPieces {
    /// Layers of a checkpoint that are to be hashed.
    unhashed: HashQueue,
    copies: PieceCopies,
    /// Keeps pieces for others.
    keeper: PieceKeeper,
    blob_registry: BlobRegistry,
    /// Layers of a checkpoint that the runtime waits to read, from this node's store or from
    /// another node, and what came of them.
    reads: PieceReads<PartialLayer>,
    /// Bytes that the store had written at the last tick.
    written_seen: u64,
    /// Threads that compute, if they hash and write as well.
    shared_threads: Option<u32>,
}

impl WorkerPieces {
    pub(super) fn new(blob_registry: BlobRegistry, resources: &Resources) -> Self {
        let threads = (resources.speed_permille / SPEED_OF_A_THREAD).max(1);
        let is_shared = resources.class == DeviceClass::Processors;
        Self {
            unhashed: HashQueue::default(),
            copies: PieceCopies::default(),
            keeper: PieceKeeper::default(),
            blob_registry,
            reads: PieceReads::default(),
            written_seen: 0,
            shared_threads: is_shared.then_some(threads),
        }
    }

    /// A plan is loaded: what came of pieces that it reads here stays.
    pub(super) fn begin_plan(&mut self, plan: &PlanRecord, me: NodeId) {
        self.reads.begin_plan(&plan.sources, &needed_at(plan, me).unwrap_or_default());
    }

    /// The layers of the plan are here, or none has a part for this node.
    pub(super) fn end_loading(&mut self) {
        self.reads.end_loading();
    }

    /// Whether pieces are hashed, written, or kept for others.
    pub(super) fn is_busy(&self) -> bool {
        self.unhashed.is_busy() || self.copies.is_busy() || self.keeper.is_busy()
    }

    /// The cluster refers to these versions; older ones are removed here.
    pub(super) fn note_referred(&mut self, references: &StoreReferences) {
        self.keeper.note_referred(references.versions.iter().copied());
    }

    /// Bytes of pieces that arrived to be kept for others.
    pub(super) fn arrived(&self) -> u64 {
        self.keeper.arrived()
    }

    /// The runtime requests that a layer of a run becomes durable.
    pub(super) fn write(
        &mut self,
        snapshot: Arc<LayerSnapshot>,
        (run, generation): (RunId, Generation),
        ports: &WorkerPorts,
    ) {
        self.unhashed.push(SealedLayer { snapshot, generation, run });
        self.hash_next(ports);
    }

    fn hash_next(&mut self, ports: &WorkerPorts) {
        let Some(sealed) = self.unhashed.poll() else { return };
        let progress = ports.work_log.pieces().clone();
        let snapshot = sealed.snapshot.clone();
        let time = ports.tasks.checkpoint_thread().time().clone();
        let hash = tokio::task::spawn_blocking(move || {
            let digest = time.meter(|| snapshot.digest());
            progress.add(snapshot.bytes());
            digest
        });
        ports.tasks.spawn(async move {
            let digest = hash.await.map_err(io::Error::other).flatten();
            WorkerCompletion::Piece(PieceTaskResult::Hashed { sealed, digest })
        });
    }

    /// A layer was hashed, and has a name now under which it is stored.
    fn keep_own(
        &mut self,
        (sealed, digest): (SealedLayer, io::Result<Digest>),
        job: &WorkerJob,
        (ports, roster): (&mut WorkerPorts, &Roster),
    ) {
        self.unhashed.note_done();
        self.hash_next(ports);
        let SealedLayer { snapshot, generation, run } = sealed;
        let version = snapshot.version();
        let layer = snapshot.layer();
        let digest = match digest {
            Ok(digest) => digest,
            Err(error) => {
                let text =
                    format!("layer {layer} of checkpoint {version} cannot be hashed: {error}");
                ports.journal.warn(text);
                let written = RuntimeInput::Written { version, layer, generation, durable: None };
                return ports.send_to_device(written);
            }
        };
        let piece = PieceRef { run, version, layer, digest, length: snapshot.bytes() };
        let required = job.active().map_or(0, ActiveJob::copies);
        let others = roster.keepers(ports.session.contacts(), layer);
        ports.work_log.begin_writing(piece);
        let last = job.active().map(ActiveJob::last_version);
        let offered = last.map(|last| self.blob_registry.offer_last(last, piece, &snapshot));
        let others = (others, offered == Some(true));
        let next = self.copies.begin((piece, generation), required, others);
        self.continue_copying(piece, next, ports);
        if ports.tasks.checkpoint_thread().put(piece, snapshot.clone()).is_err() {
            ports.journal.warn(format!("layer {layer} is not kept: too much waits for the disk"));
            self.note_own(piece, Some(snapshot), ports);
        }
    }

    /// Another node keeps a piece of this one now, or cannot.
    pub(super) fn note_copy(
        &mut self,
        piece: PieceRef,
        (node, is_kept): (NodeId, bool),
        ports: &mut WorkerPorts,
    ) {
        let next = self.copies.note_kept(piece, node, is_kept);
        self.continue_copying(piece, next, ports);
    }

    /// A node is not connected any more.
    pub(super) fn note_holder_down(&mut self, node: NodeId, ports: &mut WorkerPorts) {
        for (piece, next) in self.copies.note_down(node) {
            self.continue_copying(piece, next, ports);
        }
    }

    /// The store here has a piece of this node, or could not write it: then others fetch it from
    /// memory.
    fn note_own(
        &mut self,
        piece: PieceRef,
        refused: Option<Arc<LayerSnapshot>>,
        ports: &mut WorkerPorts,
    ) {
        let is_here = refused.is_none();
        if let Some(body) = refused {
            self.blob_registry.offer(BulkKey::Piece(piece), body);
        }
        let next = self.copies.note_local(piece, is_here);
        self.continue_copying(piece, next, ports);
    }

    fn continue_copying(&self, piece: PieceRef, next: PieceCopyAction, ports: &mut WorkerPorts) {
        match next {
            PieceCopyAction::Wait => {}
            PieceCopyAction::Request(nodes) => {
                ports.outbox.send_to_all(nodes, &NodeMessage::Keep(piece));
            }
            PieceCopyAction::Durable { generation, copies, wanted } => {
                if copies < wanted {
                    report_missing_copies(piece, (copies, wanted), ports);
                }
                self.end_copying((piece, generation), true, ports);
            }
            PieceCopyAction::Failed { generation, wanted } => {
                report_missing_copies(piece, (0, wanted), ports);
                self.end_copying((piece, generation), false, ports);
            }
        }
    }

    fn end_copying(
        &self,
        (piece, generation): (PieceRef, Generation),
        is_durable: bool,
        ports: &mut WorkerPorts,
    ) {
        self.blob_registry.withdraw(&BulkKey::Piece(piece));
        ports.work_log.note_written(piece, is_durable);
        let PieceRef { version, layer, digest, .. } = piece;
        let durable = is_durable.then_some(digest);
        self.report_checkpoint_time(version, ports);
        ports.send_to_device(RuntimeInput::Written { version, layer, generation, durable });
    }

    /// Processors that hash and write layers, own ones and those that are kept for others, do not
    /// compute meanwhile: it counts as if the device had stood still for the time that each of its
    /// threads lost.
    fn report_checkpoint_time(&self, version: Step, ports: &mut WorkerPorts) {
        let used = ports.tasks.checkpoint_thread().time().take();
        if let Some(threads) = self.shared_threads {
            let busy_milliticks = milliticks(used / threads);
            ports.send_to_device(RuntimeInput::Exported { version, busy_milliticks });
        }
    }

    /// The runtime requests a layer of a checkpoint, to continue from it.
    pub(super) fn read(
        &mut self,
        (version, layer): (Step, LayerId),
        digest: Digest,
        (job, ports): (&WorkerJob, &mut WorkerPorts),
    ) {
        let length = job.layer_len(layer).map(image_bytes);
        let (Some(active), Some(length)) = (job.active(), length) else { return };
        let run = active.document.run_of(version);
        let piece = PieceRef { run, version, layer, digest, length };
        self.reads.request(piece);
        if ports.tasks.checkpoint_thread().get(piece).is_err() {
            self.answer_read(piece, None, ports);
        }
    }

    fn answer_read(
        &mut self,
        piece: PieceRef,
        read: Option<Box<LoadedLayer>>,
        ports: &mut WorkerPorts,
    ) {
        let PieceRef { version, layer, .. } = piece;
        if self.reads.answer(piece) {
            ports.send_to_device(RuntimeInput::Read { version, layer, read });
        }
    }

    /// Another node requests that a piece is kept here too.
    pub(super) fn keep_for(
        &mut self,
        (node, piece): (NodeId, PieceRef),
        job: &WorkerJob,
        ports: &mut WorkerPorts,
    ) {
        let loaded = job.active().map(|job| (job.document.run, job.layer_bytes()));
        let loaded = loaded.as_ref().map(|(run, layer_bytes)| (*run, layer_bytes.as_slice()));
        let check = check_keep(piece, loaded, job.newest_sealed());
        let members = ports.session.contacts().members.len();
        self.keeper.note_members(members, ports.tasks.checkpoint_thread());
        self.keeper.request(node, piece, check, (&mut ports.outbox, &mut ports.journal));
        self.keeper.fetch_next(&ports.tasks);
    }

    /// A piece that is kept for another node was fetched, or not.
    pub(super) fn handle_kept(&mut self, result: PieceFetchResult, ports: &mut WorkerPorts) {
        self.keeper.note_fetched(result, (&mut ports.outbox, &mut ports.journal));
        self.keeper.fetch_next(&ports.tasks);
    }

    /// Another node makes progress with a piece of this one.
    pub(super) fn note_progress(&mut self, piece: PieceRef, node: NodeId, left: Option<u64>) {
        self.copies.note_progress(piece, node, left);
    }

    /// A tick passes. Reports to the owners of pieces that wait here that these make progress, if
    /// pieces do and not only ticks pass; and gives up own ones that do not.
    pub(super) fn handle_tick(&mut self, ports: &mut WorkerPorts) {
        self.keeper.handle_tick(&mut ports.outbox);
        let written = ports.tasks.checkpoint_thread().moved().total();
        if std::mem::replace(&mut self.written_seen, written) != written {
            self.copies.note_written();
        }
        for (piece, next) in self.copies.handle_tick() {
            self.continue_copying(piece, next, ports);
        }
    }

    fn fetch_piece(
        &mut self,
        piece: PieceRef,
        job: &WorkerJob,
        (ports, roster): (&mut WorkerPorts, &Roster),
    ) {
        let Some(len) = job.layer_len(piece.layer) else {
            return self.answer_read(piece, None, ports);
        };
        let holders = watch::channel(ports.holders(roster)).1;
        let progress = ports.work_log.pieces().shared();
        let begun = self.reads.take_begun(piece);
        let transport = ports.tasks.transport().clone();
        ports.tasks.spawn(async move {
            let layer = (wire::encode(&BulkKey::Piece(piece)), len);
            let fetch = |body| transport.fetch_bulk_joined(body, holders, Some(progress));
            let read = match fetch_image(layer, begun, fetch).await {
                Ok(image) => with_digest(image).await,
                Err(unfinished) => Err(unfinished),
            };
            WorkerCompletion::Piece(PieceTaskResult::Read { piece, read })
        });
    }

    /// A piece was hashed or read, or not.
    pub(super) fn handle_task(
        &mut self,
        result: PieceTaskResult,
        job: &WorkerJob,
        (ports, roster): (&mut WorkerPorts, &Roster),
    ) {
        match result {
            PieceTaskResult::Hashed { sealed, digest } => {
                self.keep_own((sealed, digest), job, (ports, roster));
            }
            PieceTaskResult::Read { piece, read: Ok(read) } => {
                self.answer_read(piece, Some(read), ports);
            }
            PieceTaskResult::Read { piece, read: Err(UnfinishedLayer { error, begun }) } => {
                let PieceRef { version, layer, .. } = piece;
                ports.journal.warn(format!("no node has layer {layer} of {version}: {error}"));
                begun.into_iter().for_each(|begun| self.reads.note_unfinished(piece, begun));
                self.answer_read(piece, None, ports);
            }
        }
    }

    /// The thread of the store reports the outcome for a piece.
    pub(super) fn handle_store_event(
        &mut self,
        event: StoreEvent,
        job: &WorkerJob,
        (ports, roster): (&mut WorkerPorts, &Roster),
    ) {
        match event {
            StoreEvent::Put { piece, outcome: Ok(()) } => self.note_own(piece, None, ports),
            StoreEvent::Put { piece, outcome: Err((failure, body)) } => {
                ports.journal.warn(format!("layer {} is not kept: {failure}", piece.layer));
                self.note_own(piece, Some(body), ports);
            }
            StoreEvent::Got { piece, read: Some(read) } => {
                self.answer_read(piece, Some(read), ports);
            }
            StoreEvent::Got { piece, read: None } => self.fetch_piece(piece, job, (ports, roster)),
            StoreEvent::Failed { failure } => ports.journal.warn(format!("the store: {failure}")),
            StoreEvent::Replaced { damage, aside } => {
                ports.journal.warn(damage.put_aside_text(&aside));
            }
            StoreEvent::Rotten { piece, why } => {
                ports.journal.warn(damaged_piece_text(piece, &why));
                let tasks = &ports.tasks;
                let parts = (tasks.transport().clone(), tasks.checkpoint_thread().clone());
                repair(piece, parts, ports.holders(roster), ports.work_log.pieces().clone());
            }
            StoreEvent::RottenData(found) => {
                let name = expected_name(found, &job.data());
                ports.journal.warn(damaged_text(ports.me, name));
                fetch_again(name, ports.holders(roster), ports);
            }
            StoreEvent::Mended { piece, outcome, .. } => match repair_text(piece, outcome) {
                Ok(text) => ports.journal.log(text),
                Err(text) => ports.journal.warn(text),
            },
            StoreEvent::Collected(FreedSpace { chunks: 0, .. }) => {}
            StoreEvent::Collected(FreedSpace { chunks, bytes }) => {
                let bytes = Bytes(bytes);
                ports.journal.log(format!("old checkpoints: {chunks} chunks removed, {bytes}"));
            }
        }
    }
}

/// Too few nodes could write a piece: controllers are sent that.
fn report_missing_copies(
    piece: PieceRef,
    (copies, wanted): (usize, usize),
    ports: &mut WorkerPorts,
) {
    let PieceRef { version, layer, .. } = piece;
    let subject = format!("layer {layer} of checkpoint {version}");
    ports.journal.warn(format!("{subject}: {copies} of {wanted} copies could be written"));
    let copies = copies as u32;
    let wanted = wanted as u32;
    let failed = SaveFailed { version, layer, copies, wanted };
    ports.send_to_controllers(&NodeMessage::SaveFailed(failed));
}

/// Computes the digest of a layer beside the event loop and the device.
async fn with_digest(image: LayerImage) -> Result<Box<LoadedLayer>, UnfinishedLayer> {
    let hash = move || {
        let digest = layer_digest(&image);
        Box::new(LoadedLayer { image, digest })
    };
    tokio::task::spawn_blocking(hash).await.map_err(|error| UnfinishedLayer::lost(&error))
}
