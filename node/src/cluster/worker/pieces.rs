//! Pieces of checkpoints on a worker: written here and kept elsewhere, read here or fetched.

use std::collections::VecDeque;
use std::sync::Arc;

use zbelastic_consensus::class::DeviceClass;
use zbelastic_consensus::member::Resources;
use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_policy::data::expected_name;
use zbelastic_policy::tick::milliticks;
use zbelastic_trainer::elastic::{LayerImage, LoadedLayer, image_bytes, layer_digest};
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_transport::{BulkFetch, RequestReply};
use zbelastic_types::{Bytes, Digest, Generation, LayerId, NodeId, RunId, Step};

use super::layers::fetch_image;
use super::{JobReadiness, WorkerCompletion, WorkerNode};
use crate::cluster::SPEED_OF_A_THREAD;
use crate::cluster::blob_registry::LayerBody;
use crate::cluster::checkpoint_thread::{StoreEvent, collect_now};
use crate::cluster::data::damaged_text;
use crate::cluster::disk_space::{DiskSpace, DiskSpaceChange};
use crate::cluster::keep_queue::KeepQueueFull;
use crate::cluster::keep_rule::check_keep;
use crate::cluster::piece_copies::PieceCopyAction;
use crate::cluster::piece_fetch::{PieceFetchError, fetch_piece};
use crate::cluster::scrub::{damaged_piece_text, repair, repair_text};
use crate::cluster::wire::{
    self, BulkKey, FreedSpace, NodeMessage, NodeRequest, PieceRef, SaveFailed, StoreReferences,
};

/// A layer of a checkpoint, the plan under which it was sealed, and the run that was loaded then.
pub(super) struct SealedLayer {
    image: Arc<LayerImage>,
    generation: Generation,
    run: RunId,
}

/// Layers of checkpoints that wait to be hashed: one after the other, beside the event loop and the
/// device. What was sealed under another plan or in another run leaves the queue when a later one
/// comes, so there are no more than a runtime writes at once, the layers of two versions.
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

/// The result of fetching or hashing a piece.
pub(super) enum PieceTaskResult {
    /// The layer was hashed, and is to become durable.
    Hashed { sealed: SealedLayer, digest: Option<Digest> },
    /// A piece was read from the store or from another node, to continue from it.
    Read { piece: PieceRef, read: Result<Box<LoadedLayer>, String> },
    /// A piece was fetched to be kept for another node, or not.
    Kept { piece: PieceRef, node: NodeId, outcome: Result<(), PieceFetchError> },
}

impl WorkerNode {
    /// The runtime requests that a layer becomes durable.
    pub(super) fn write(&mut self, image: LayerImage, generation: Generation) {
        let Some(run) = self.run() else { return };
        self.unhashed.push(SealedLayer { image: Arc::new(image), generation, run });
        self.hash_next();
    }

    fn hash_next(&mut self) {
        let Some(sealed) = self.unhashed.poll() else { return };
        let completions = self.completions.clone();
        let progress = self.work_log.pieces().clone();
        let image = sealed.image.clone();
        let time = self.checkpoint_thread.time().clone();
        let hash = tokio::task::spawn_blocking(move || {
            let digest = time.meter(|| layer_digest(&image));
            progress.add(image_bytes(image.w.len()));
            digest
        });
        tokio::spawn(async move {
            // Of a thread that panicked there is no digest, and the layer cannot be written.
            let result = PieceTaskResult::Hashed { sealed, digest: hash.await.ok() };
            let _ = completions.send(WorkerCompletion::Piece(result)).await;
        });
    }

    /// A layer was hashed, and has a name now under which it is stored.
    fn keep_own(&mut self, sealed: SealedLayer, digest: Option<Digest>) {
        self.unhashed.note_done();
        self.hash_next();
        let SealedLayer { image, generation, run } = sealed;
        let LayerImage { version, layer, .. } = *image;
        let Some(digest) = digest else {
            self.journal.warn(format!("layer {layer} of checkpoint {version} cannot be hashed"));
            let written = RuntimeInput::Written { version, layer, generation, durable: None };
            return self.send_to_device(written);
        };
        let piece = PieceRef { run, version, layer, digest, length: image_bytes(image.w.len()) };
        let required = match &self.readiness {
            JobReadiness::Ready(job) => job.document.job.config.checkpoint.copies as usize,
            JobReadiness::Idle | JobReadiness::Fetching(_) => 0,
        };
        let others = self.peers.roster().keepers(self.session.contacts(), layer);
        self.copies.begin((piece, generation), required, others);
        self.work_log.begin_writing(piece);
        let body = Arc::new(LayerBody::new(image));
        if self.checkpoint_thread.put(piece, body.clone()).is_err() {
            self.journal.warn(format!("layer {layer} is not kept: too much waits for the disk"));
            self.note_own(piece, Some(body));
        }
    }

    pub(super) fn note_copy(&mut self, piece: PieceRef, node: NodeId, is_kept: bool) {
        let next = self.copies.note_kept(piece, node, is_kept);
        self.continue_copying(piece, next);
    }

    /// A node is not connected any more.
    pub(super) fn note_holder_down(&mut self, node: NodeId) {
        for (piece, next) in self.copies.note_down(node) {
            self.continue_copying(piece, next);
        }
    }

    /// The store here has a piece of this node, or could not write it: then others fetch it from
    /// memory.
    fn note_own(&mut self, piece: PieceRef, refused: Option<Arc<LayerBody>>) {
        let is_here = refused.is_none();
        if let Some(body) = refused {
            self.blob_registry.offer(BulkKey::Piece(piece), body);
        }
        let next = self.copies.note_local(piece, is_here);
        self.continue_copying(piece, next);
    }

    fn continue_copying(&mut self, piece: PieceRef, next: PieceCopyAction) {
        match next {
            PieceCopyAction::Wait => {}
            PieceCopyAction::Request(nodes) => {
                nodes.into_iter().for_each(|n| self.send_node(n, &NodeMessage::Keep(piece)));
            }
            PieceCopyAction::Durable { generation, copies, wanted } => {
                if copies < wanted {
                    self.report_missing_copies(piece, (copies, wanted));
                }
                self.end_copying((piece, generation), true);
            }
            PieceCopyAction::Failed { generation, wanted } => {
                self.report_missing_copies(piece, (0, wanted));
                self.end_copying((piece, generation), false);
            }
        }
    }

    fn report_missing_copies(&mut self, piece: PieceRef, (copies, wanted): (usize, usize)) {
        let PieceRef { version, layer, .. } = piece;
        let subject = format!("layer {layer} of checkpoint {version}");
        self.journal.warn(format!("{subject}: {copies} of {wanted} copies could be written"));
        let copies = copies as u32;
        let wanted = wanted as u32;
        let failed = SaveFailed { version, layer, copies, wanted };
        self.send_to_controllers(&NodeMessage::SaveFailed(failed));
    }

    fn end_copying(&mut self, (piece, generation): (PieceRef, Generation), is_durable: bool) {
        self.blob_registry.withdraw(&BulkKey::Piece(piece));
        self.work_log.note_written(piece, is_durable);
        let PieceRef { version, layer, digest, .. } = piece;
        let durable = is_durable.then_some(digest);
        self.report_checkpoint_time(version);
        self.send_to_device(RuntimeInput::Written { version, layer, generation, durable });
    }

    /// Processors that hash and write layers, own ones and those that are kept for others, do not
    /// compute meanwhile: it counts as if the device had stood still for what each of its threads
    /// lost.
    fn report_checkpoint_time(&mut self, version: Step) {
        let Resources { class, speed_permille, .. } = &self.setup.resources;
        let used = self.checkpoint_thread.time().take();
        if *class == DeviceClass::Processors {
            let threads = (speed_permille / SPEED_OF_A_THREAD).max(1);
            let busy_milliticks = milliticks(used / threads);
            self.send_to_device(RuntimeInput::Exported { version, busy_milliticks });
        }
    }

    /// Measures the disk now and then, beside the event loop.
    pub(super) fn check_disk_space(&mut self) {
        if !self.disk_watch.handle_tick() {
            return;
        }
        let checkpoint_thread = self.checkpoint_thread.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let _ = completions
                .send(WorkerCompletion::DiskSpace(checkpoint_thread.disk_space().await))
                .await;
        });
    }

    pub(super) fn handle_disk_space(&mut self, found: Option<DiskSpace>) {
        let checkpoint = match &self.readiness {
            JobReadiness::Ready(job) => job.layer_bytes().iter().sum(),
            JobReadiness::Idle | JobReadiness::Fetching(_) => 0,
        };
        match self.disk_watch.note(found, Bytes(checkpoint)) {
            Some(DiskSpaceChange::Low(shortage)) => {
                self.journal.warn(format!(
                    "{shortage}: pieces of checkpoints that do not fit are kept by other nodes"
                ));
            }
            Some(DiskSpaceChange::Ample) => {
                self.journal.log("the disk has free space again".to_owned())
            }
            None => {}
        }
        if let Some(space) = found {
            self.send_to_controllers(&NodeMessage::Room {
                room: space,
                low: self.disk_watch.low(),
            });
        }
    }

    /// The runtime requests a layer of a checkpoint, to continue from it.
    pub(super) fn read(&mut self, version: Step, layer: LayerId, digest: Digest) {
        let length = self.layer_floats(layer).map(image_bytes);
        let (JobReadiness::Ready(job), Some(length)) = (&self.readiness, length) else { return };
        let run = job.document.run_of(version);
        let piece = PieceRef { run, version, layer, digest, length };
        self.pieces_reading.insert((version, layer), piece);
        if self.checkpoint_thread.get(piece).is_err() {
            self.answer_read(piece, None);
        }
    }

    fn answer_read(&mut self, piece: PieceRef, read: Option<Box<LoadedLayer>>) {
        let PieceRef { version, layer, .. } = piece;
        if self.pieces_reading.remove(&(version, layer)).is_some() {
            self.send_to_device(RuntimeInput::Read { version, layer, read });
        }
    }

    /// Another node requests that a piece is kept here too.
    pub(super) fn keep_for(&mut self, node: NodeId, piece: PieceRef) {
        let job = match &self.readiness {
            JobReadiness::Ready(job) => Some((job.document.run, job.layer_bytes())),
            JobReadiness::Idle | JobReadiness::Fetching(_) => None,
        };
        let job = job.as_ref().map(|(run, layer_bytes)| (*run, layer_bytes.as_slice()));
        if let Err(refusal) = check_keep(piece, job, self.newest_sealed) {
            self.journal.log(format!("nothing is kept for node {node}: {refusal}"));
            return self.send_node(node, &NodeMessage::NotKept(piece));
        }
        match self.keeping.push(piece, node) {
            Ok(()) => self.keep_next(),
            Err(KeepQueueFull) => self.send_node(node, &NodeMessage::NotKept(piece)),
        }
    }

    fn keep_next(&mut self) {
        let Some((piece, node)) = self.keeping.poll() else { return };
        let transport = self.transport.clone();
        let checkpoint_thread = self.checkpoint_thread.clone();
        let progress = self.work_log.pieces().clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let outcome = fetch_piece(&transport, &checkpoint_thread, piece, node, progress).await;
            let result = PieceTaskResult::Kept { piece, node, outcome };
            let _ = completions.send(WorkerCompletion::Piece(result)).await;
        });
    }

    /// Answers another node that requested a piece to be kept here.
    fn answer_keep(&mut self, node: NodeId, piece: PieceRef, answer: &NodeMessage) {
        self.send_node(node, answer);
        self.keeping.note_done(piece, node);
        self.keep_next();
    }

    /// Reports to the nodes whose pieces wait here that they make progress, if pieces do and not
    /// only passes; and gives up own ones that do not. `moved` are the bytes of pieces that arrived
    /// here, or went to or from the disk.
    pub(super) fn report_piece_progress(&mut self, moved: u64) {
        for (piece, node) in self.keeping.handle_tick(moved) {
            self.send_node(node, &NodeMessage::Keeping(piece));
        }
        let written = self.checkpoint_thread.moved().total();
        if std::mem::replace(&mut self.written_seen, written) != written {
            self.copies.note_written();
        }
        for (piece, next) in self.copies.handle_tick() {
            self.continue_copying(piece, next);
        }
    }

    fn fetch_piece(&mut self, piece: PieceRef) {
        let Some(float_count) = self.layer_floats(piece.layer) else {
            return self.answer_read(piece, None);
        };
        let holders = self.peers.roster().holders(self.session.contacts());
        let progress = Some(self.work_log.pieces().shared());
        let key = wire::encode(&BulkKey::Piece(piece));
        let fetch = BulkFetch { holders, key, length: piece.length, progress };
        let transport = self.transport.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let read = match fetch_image(&transport, fetch, float_count).await {
                Ok(image) => with_digest(image).await,
                Err(error) => Err(error),
            };
            let _ = completions
                .send(WorkerCompletion::Piece(PieceTaskResult::Read { piece, read }))
                .await;
        });
    }

    pub(super) fn handle_piece(&mut self, result: PieceTaskResult) {
        match result {
            PieceTaskResult::Hashed { sealed, digest } => self.keep_own(sealed, digest),
            PieceTaskResult::Read { piece, read: Ok(read) } => self.answer_read(piece, Some(read)),
            PieceTaskResult::Read { piece, read: Err(error) } => {
                let PieceRef { version, layer, .. } = piece;
                self.journal.warn(format!("no node has layer {layer} of {version}: {error}"));
                self.answer_read(piece, None);
            }
            PieceTaskResult::Kept { piece, node, outcome: Ok(()) } => {
                self.answer_keep(node, piece, &NodeMessage::Kept(piece));
            }
            PieceTaskResult::Kept { piece, node, outcome: Err(error) } => {
                self.journal.warn(format!("nothing is kept for node {node}: {error}"));
                self.answer_keep(node, piece, &NodeMessage::NotKept(piece));
            }
        }
    }

    pub(super) fn handle_store_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Put { piece, outcome: Ok(()) } => self.note_own(piece, None),
            StoreEvent::Put { piece, outcome: Err((failure, body)) } => {
                self.journal.warn(format!("layer {} is not kept: {failure}", piece.layer));
                self.note_own(piece, Some(body));
            }
            StoreEvent::Got { piece, read: Some(read) } => self.answer_read(piece, Some(read)),
            StoreEvent::Got { piece, read: None } => self.fetch_piece(piece),
            StoreEvent::Failed { failure } => self.journal.warn(format!("the store: {failure}")),
            StoreEvent::Rotten { piece, why } => {
                self.journal.warn(damaged_piece_text(piece, &why));
                let others = self.peers.roster().holders(self.session.contacts());
                let parts = (self.transport.clone(), self.checkpoint_thread.clone());
                repair(piece, parts, others, self.work_log.pieces().clone());
            }
            StoreEvent::RottenData(found) => {
                let names = match &self.readiness {
                    JobReadiness::Ready(job) => job.document.job.data(),
                    JobReadiness::Idle | JobReadiness::Fetching(_) => Vec::new(),
                };
                let name = expected_name(found, &names);
                self.journal.warn(damaged_text(self.setup.node, name));
                self.fetch_again(name, self.peers.roster().holders(self.session.contacts()));
            }
            StoreEvent::Mended { piece, outcome } => match repair_text(piece, outcome) {
                Ok(text) => self.journal.log(text),
                Err(text) => self.journal.warn(text),
            },
            StoreEvent::Collected(FreedSpace { chunks: 0, .. }) => {}
            StoreEvent::Collected(FreedSpace { chunks, bytes }) => {
                let bytes = Bytes(bytes);
                self.journal.log(format!("old checkpoints: {chunks} chunks removed, {bytes}"));
            }
        }
    }

    /// A request arrived, from a controller or from a client.
    pub(super) fn handle_request(&mut self, from: PeerIdentity, bytes: &[u8], reply: RequestReply) {
        match NodeRequest::decode(bytes) {
            Some(NodeRequest::Collect(referred)) if from.role == PeerRole::Controller => {
                let checkpoint_thread = self.checkpoint_thread.clone();
                tokio::spawn(async move {
                    reply.answer(wire::encode(&collect_now(checkpoint_thread, referred).await))
                });
            }
            Some(
                NodeRequest::Collect(_)
                | NodeRequest::Renew { .. }
                | NodeRequest::AuthorityKey { .. },
            ) => drop(reply),
            None => self.answer(from, bytes, reply),
        }
    }

    /// A controller sent what is referred to; the rest is removed.
    pub(super) fn collect(&mut self, referred: StoreReferences) {
        let run = self.run();
        let of_run = referred.versions.iter().filter(|version| Some(version.run) == run);
        let newest = of_run.map(|found| found.version).max().unwrap_or_default();
        self.newest_sealed = self.newest_sealed.max(newest);
        // If the thread's queue is full now, the next checkpoint brings the message again.
        let _ = self.checkpoint_thread.collect(referred);
    }

    /// The run that is loaded here.
    fn run(&self) -> Option<RunId> {
        match &self.readiness {
            JobReadiness::Ready(job) => Some(job.document.run),
            JobReadiness::Idle | JobReadiness::Fetching(_) => None,
        }
    }
}

/// Computes the digest of a layer beside the event loop and the device.
async fn with_digest(image: LayerImage) -> Result<Box<LoadedLayer>, String> {
    let hash = move || {
        let digest = layer_digest(&image);
        Box::new(LoadedLayer { image, digest })
    };
    tokio::task::spawn_blocking(hash).await.map_err(|error| error.to_string())
}
