//! Files that a node keeps on its disk for the cluster: pieces of checkpoints, their manifests,
//! text.
//!
//! Disks are slow, so a thread does the work and reports the outcome to the event loop. A piece
//! that a worker wrote is reported to be durable only when as many other nodes have it as the
//! configuration requires: a machine that is preempted loses its disk as well.

mod aside_stores;
mod store_in_use;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::SystemTime;
use std::{io, thread};

use tokio::sync::{mpsc, watch};
use zbelastic_checkpoint::{
    CheckpointStore, CheckpointStoreError, Manifest, SledStore, aside_folders, collect_asides,
};
use zbelastic_identity::random_number;
use zbelastic_machine::background_thread::{CheckpointTime, raise_niceness};
use zbelastic_machine::data_file::{FileBody, served_hashes};
use zbelastic_machine::disk_usage;
use zbelastic_machine::layer_snapshot::LayerSnapshot;
use zbelastic_policy::aside::AsideRetention;
use zbelastic_policy::collect::collect_garbage as collect_pieces;
use zbelastic_policy::piece_body::PieceBody;
use zbelastic_policy::scrub::ScrubReport;
use zbelastic_policy::store_opening::{ASIDE_MAX, StoreOpeningFault};
use zbelastic_policy::store_reopening::REOPEN_PAUSE_MIN;
use zbelastic_trainer::elastic::{LayerAssembler, LoadedLayer};
use zbelastic_transport::bulk::BodyReader;
use zbelastic_transport::{BulkBody, RequestReply};
use zbelastic_types::{Bytes, Digest};
use zbelastic_wire::document::DataName;
use zbelastic_wire::{
    self as wire, BulkKey, CollectedSpace, CollectionRequest, FreedSpace, NodeAnswer, PieceRef,
    StoreReferences,
};

use super::disk_space::{DiskSpaceShortage, NodeDisks};
use super::scrub::scrub;
use aside_stores::AsideStores;
use store_in_use::StoreKeeper;
use zbelastic_machine::unused_data::collect_data;
use zbelastic_node_folder::stores::{OpenStores, StoreOpenError};
use zbelastic_policy::WorkCounter;

/// Commands that wait for the disk at once: the pieces of two checkpoints of the largest model.
const COMMANDS_MAX: usize = 4096;
/// A command to the checkpoint thread.
enum StoreCommand {
    Put {
        piece: PieceRef,
        body: Arc<LayerSnapshot>,
    },
    Get {
        piece: PieceRef,
    },
    Manifest(Box<Manifest>),
    Collect {
        referred: StoreReferences,
    },
    /// Use the store in this folder from now on.
    Use {
        folder: PathBuf,
    },
}

/// A counter of the bytes that a store writes and reads.
struct CountingReader<'a, R> {
    reader: R,
    moved: &'a WorkCounter,
}

impl<R: io::Read> io::Read for CountingReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(into)?;
        self.moved.add(count as u64);
        Ok(count)
    }
}

/// An event that the checkpoint thread reports.
#[derive(Debug)]
pub enum StoreEvent {
    /// A piece was written, or could not be.
    Put {
        /// The piece that was to be written.
        piece: PieceRef,
        /// Why it was not written, and the body that others may fetch instead.
        outcome: Result<(), (StoreWriteError, Arc<LayerSnapshot>)>,
    },
    /// A piece was read; `None` if it is not in this store or is damaged.
    Got {
        /// The piece that was to be read.
        piece: PieceRef,
        /// The layer's state and its digest.
        read: Option<Box<LoadedLayer>>,
    },
    /// A manifest could not be written, or something that is not needed not removed.
    Failed {
        /// Why the write or the opening failed.
        failure: StoreWriteError,
    },
    /// The store was found damaged and is put aside; another one is begun in its place.
    Replaced {
        /// The fault of the damaged one.
        damage: StoreOpenError,
        /// The folder to which the damaged one was moved.
        aside: PathBuf,
    },
    /// Pieces that no checkpoint needs any more are removed.
    Collected(FreedSpace),
    /// A piece was read again and is damaged.
    Rotten {
        /// The piece that is damaged.
        piece: PieceRef,
        /// The fault that was found, in words.
        why: String,
    },
    /// A text, or weights, was read again and is another one.
    RottenData(DataName),
    /// The result of fetching a damaged piece again.
    Mended {
        /// The piece that was damaged.
        piece: PieceRef,
        /// The fault, in words, if [`Self::Rotten`] did not report it.
        found: Option<String>,
        /// Why it is still damaged, in words.
        outcome: Result<(), String>,
    },
}

/// Why a write to the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreWriteError {
    /// The store refused the write.
    #[error(transparent)]
    Store(#[from] CheckpointStoreError),
    /// The store cannot be opened.
    #[error(transparent)]
    Place(#[from] StoreOpenError),
    /// The disk is low.
    #[error(transparent)]
    Room(#[from] DiskSpaceShortage),
    /// There is no store: it could not be opened, which was reported then.
    #[error("there is no store")]
    NoStore,
}

/// The store in use; none if it could not be opened.
pub type StoreInUse = Option<Arc<SledStore>>;

/// Too many commands wait for the disk.
#[derive(Debug, thiserror::Error)]
#[error("{COMMANDS_MAX} commands wait for the disk of the store")]
pub struct CheckpointThreadBusy;

/// The handle of the checkpoint thread; cheap to clone.
#[derive(Clone)]
pub struct CheckpointThread {
    commands: SyncSender<StoreCommand>,
    reports: mpsc::Sender<StoreEvent>,
    store: watch::Receiver<StoreInUse>,
    scrubbed: watch::Receiver<ScrubReport>,
    asides: watch::Receiver<AsideRetention>,
    data: PathBuf,
    moved: WorkCounter,
    time: CheckpointTime,
}

impl CheckpointThread {
    /// Starts the thread of a node's stores, of which `store` is used, or the one in a folder once it can
    /// be opened, which failed for a fault that was reported; text lies in the folder `data`; and one that
    /// reads all of it again now and then. They have a raised nice value, so that passes run first.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start(
        stores: OpenStores,
        store: Result<Arc<SledStore>, (PathBuf, StoreOpeningFault)>,
        data: PathBuf,
    ) -> io::Result<(Self, mpsc::Receiver<StoreEvent>)> {
        let (commands, inbox) = sync_channel(COMMANDS_MAX);
        let (reports, outbox) = mpsc::channel(COMMANDS_MAX);
        let (retention, asides) = watch::channel(AsideRetention::default());
        let (mut kept, store) = StoreKeeper::new(stores, store, AsideStores::new(retention));
        let moved = WorkCounter::default();
        let count = moved.clone();
        let time = CheckpointTime::default();
        let metered = time.clone();
        let folder = data.clone();
        let to = reports.clone();
        let work = move || {
            raise_niceness();
            run_thread(&mut kept, &folder, (&inbox, &to), (&count, &metered));
        };
        thread::Builder::new().name("store".to_owned()).spawn(work)?;
        let read = store.clone();
        let folder = data.clone();
        let to = reports.clone();
        let (progress, scrubbed) = watch::channel(ScrubReport::default());
        let work = move || scrub(&read, &folder, (&to, &progress), random_number());
        thread::Builder::new().name("scrub".to_owned()).spawn(work)?;
        Ok((Self { commands, reports, store, scrubbed, asides, data, moved, time }, outbox))
    }

    /// Reports work that was done beside the store's thread.
    pub async fn report(&self, event: StoreEvent) {
        // Without a receiver of reports the node ends.
        let _ = self.reports.send(event).await;
    }

    /// How far reading everything again is.
    #[must_use]
    pub fn scrub_report(&self) -> ScrubReport {
        *self.scrubbed.borrow()
    }

    /// Bytes that the store has written and read.
    #[must_use]
    pub fn moved(&self) -> &WorkCounter {
        &self.moved
    }

    /// The processor time of checkpoints beside the device.
    #[must_use]
    pub fn time(&self) -> &CheckpointTime {
        &self.time
    }

    /// Requests that a piece is written.
    ///
    /// # Errors
    /// If too many commands wait.
    pub fn put(
        &self,
        piece: PieceRef,
        body: Arc<LayerSnapshot>,
    ) -> Result<(), CheckpointThreadBusy> {
        self.send(StoreCommand::Put { piece, body })
    }

    /// Requests that a piece is read.
    ///
    /// # Errors
    /// If too many commands wait.
    pub fn get(&self, piece: PieceRef) -> Result<(), CheckpointThreadBusy> {
        self.send(StoreCommand::Get { piece })
    }

    /// Requests that the manifest of a checkpoint is written.
    ///
    /// # Errors
    /// If too many commands wait.
    pub fn put_manifest(&self, manifest: Manifest) -> Result<(), CheckpointThreadBusy> {
        self.send(StoreCommand::Manifest(Box::new(manifest)))
    }

    /// Removes pieces and texts that are not referred to.
    ///
    /// # Errors
    /// If too many commands wait.
    pub fn collect(&self, referred: StoreReferences) -> Result<(), CheckpointThreadBusy> {
        self.send(StoreCommand::Collect { referred })
    }

    /// Uses another store for all later commands.
    ///
    /// # Errors
    /// If too many commands wait.
    pub fn use_store(&self, folder: PathBuf) -> Result<(), CheckpointThreadBusy> {
        self.send(StoreCommand::Use { folder })
    }

    fn send(&self, command: StoreCommand) -> Result<(), CheckpointThreadBusy> {
        match self.commands.try_send(command) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(CheckpointThreadBusy),
        }
    }

    /// The store itself, for callers that may wait for the disk; none if it cannot be opened.
    #[must_use]
    pub fn store(&self) -> Option<Arc<SledStore>> {
        self.store.borrow().clone()
    }

    /// The space on the disks of the store and of the node's other data, measured beside the event
    /// loop.
    pub async fn disks(&self) -> NodeDisks {
        let (store, data) = (self.store(), self.data.clone());
        let measure = move || NodeDisks {
            store: store.and_then(|store| disk_usage(store.folder()).ok()),
            data: disk_usage(&data).ok(),
        };
        tokio::task::spawn_blocking(measure).await.unwrap_or_default()
    }

    /// The pieces that others may fetch from here, by name; read when it is fetched, chunk by
    /// chunk.
    #[must_use]
    pub fn find(&self, key: &BulkKey) -> Option<Arc<dyn BulkBody>> {
        match key {
            BulkKey::Layer { .. } => None,
            BulkKey::Piece(piece) => {
                let store = self.store()?;
                let record = store.record(piece.name()).ok()??;
                Some(Arc::new(PieceBody::new(store, record)))
            }
            BulkKey::Data(hash) => Some(Arc::new(FileBody::open(&self.data_path(*hash)).ok()?)),
            BulkKey::DataHashes(hash) => {
                Some(Arc::new(served_hashes(&self.data_path(*hash), *hash)?))
            }
        }
    }

    /// Where a text lies or will.
    #[must_use]
    pub fn data_path(&self, hash: Digest) -> PathBuf {
        self.data.join(format!("{hash}.data"))
    }
}

fn run_thread(
    kept: &mut StoreKeeper,
    data: &Path,
    (commands, reports): (&Receiver<StoreCommand>, &mpsc::Sender<StoreEvent>),
    (moved, time): (&WorkCounter, &CheckpointTime),
) {
    loop {
        let command = commands.recv_timeout(REOPEN_PAUSE_MIN);
        if let Some(event) = kept.reopen()
            && reports.blocking_send(event).is_err()
        {
            return;
        }
        let command = match command {
            Ok(command) => command,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let StoreCommand::Collect { referred } = &command {
            kept.collect_asides(&referred.versions, reports);
        }
        let report = match (command, kept.store()) {
            (StoreCommand::Use { folder }, _) => kept.use_folder(folder),
            (command, Some(store)) => execute((&*store, data), command, (moved, time)),
            (command, None) => fail_without_store(command),
        };
        if let Some(report) = report
            && reports.blocking_send(report).is_err()
        {
            return;
        }
    }
}

fn execute(
    (store, data): (&SledStore, &Path),
    command: StoreCommand,
    (moved, time): (&WorkCounter, &CheckpointTime),
) -> Option<StoreEvent> {
    match command {
        StoreCommand::Put { piece, body } => {
            let outcome = time.meter(|| put(store, piece, &body, moved));
            let outcome = outcome.map_err(|failure| (failure, body));
            Some(StoreEvent::Put { piece, outcome })
        }
        StoreCommand::Get { piece } => {
            Some(StoreEvent::Got { piece, read: read(store, piece, moved).map(Box::new) })
        }
        StoreCommand::Manifest(manifest) => {
            let failure = store.put_manifest(&manifest).err()?;
            Some(StoreEvent::Failed { failure: failure.into() })
        }
        StoreCommand::Collect { referred } => Some(match collect(store, data, &referred) {
            Ok(freed) => StoreEvent::Collected(freed),
            Err(failure) => StoreEvent::Failed { failure: failure.into() },
        }),
        StoreCommand::Use { .. } => unreachable!("another store is no command to a store"),
    }
}

/// Whether so many bytes fit where a store lies. A disk that does not report its space is tried.
///
/// # Errors
/// If they do not fit.
pub fn check_disk_space(store: &SledStore, length: u64) -> Result<(), DiskSpaceShortage> {
    disk_usage(store.folder()).map_or(Ok(()), |space| space.check(Bytes(length)))
}

fn put(
    store: &SledStore,
    piece: PieceRef,
    body: &LayerSnapshot,
    moved: &WorkCounter,
) -> Result<(), StoreWriteError> {
    check_disk_space(store, piece.length)?;
    let mut reader = CountingReader { reader: BodyReader::new(body), moved };
    store.put_from(piece.name(), body.len(), &mut reader)?;
    Ok(())
}

/// Nothing is kept somewhere else instead: no node would look for it there.
fn fail_without_store(command: StoreCommand) -> Option<StoreEvent> {
    match command {
        StoreCommand::Put { piece, body } => {
            Some(StoreEvent::Put { piece, outcome: Err((StoreWriteError::NoStore, body)) })
        }
        StoreCommand::Get { piece } => Some(StoreEvent::Got { piece, read: None }),
        StoreCommand::Manifest(_) => Some(StoreEvent::Failed { failure: StoreWriteError::NoStore }),
        StoreCommand::Collect { .. } | StoreCommand::Use { .. } => None,
    }
}

/// Reads a piece chunk by chunk to where it will lie, and computes its digest on the way.
fn read(store: &impl CheckpointStore, piece: PieceRef, moved: &WorkCounter) -> Option<LoadedLayer> {
    let record = store.record(piece.name()).ok()??;
    let mut assembler = LayerAssembler::new(record.length);
    let mut bytes = Vec::new();
    for hash in &record.chunks {
        store.chunk_into(*hash, &mut bytes).ok()?;
        assembler.push(&bytes).ok()?;
        moved.add(bytes.len() as u64);
    }
    let (image, digest) = assembler.finish().ok()?;
    Some(LoadedLayer { image, digest })
}

/// Removes pieces and texts that are not referred to, and returns how much that was.
///
/// # Errors
/// If the medium fails.
fn collect(
    store: &impl CheckpointStore,
    data: &Path,
    referred: &StoreReferences,
) -> Result<FreedSpace, CheckpointStoreError> {
    let mut freed = collect_pieces(store, referred)?;
    if let Some(referred) = &referred.data {
        freed.bytes += collect_data(data, referred, SystemTime::now());
    }
    Ok(freed)
}

/// Answers a node that requested a collection.
pub fn answer_collect(
    checkpoint_thread: CheckpointThread,
    (referred, form): CollectionRequest,
    reply: RequestReply,
) {
    tokio::spawn(async move {
        let outcome = collect_now(checkpoint_thread, referred).await;
        let refused = |why| NodeAnswer::Refused { why };
        reply.answer(wire::encode(&outcome.map_or_else(refused, form)));
    });
}

/// The same as [`collect`] beside the event loop, and stores that were put aside.
///
/// # Errors
/// Why nothing was removed, in words.
pub async fn collect_now(
    checkpoint_thread: CheckpointThread,
    referred: StoreReferences,
) -> Result<CollectedSpace, String> {
    let store = checkpoint_thread.store().ok_or_else(|| StoreWriteError::NoStore.to_string())?;
    let collect = move || {
        let freed = collect(&*store, &checkpoint_thread.data, &referred)?;
        let folders = aside_folders(store.folder(), ASIDE_MAX);
        let mut retention = checkpoint_thread.asides.borrow().clone();
        let may_go = !folders.is_empty()
            && store.inventory().is_ok_and(|held| retention.may_go(&referred.versions, &held));
        let asides = collect_asides(&folders, may_go);
        Ok::<_, CheckpointStoreError>(CollectedSpace { freed, asides })
    };
    let collected = tokio::task::spawn_blocking(collect).await;
    collected.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_node_folder::NodeDataFolder;
    use zbelastic_node_folder::stores::StoreLocations;
    use zbelastic_trainer::elastic::LayerImage;
    use zbelastic_types::{LayerId, RunId, Step};

    fn piece(layer: u32) -> PieceRef {
        let digest = Digest([layer as u8; 32]);
        PieceRef { run: RunId(1), version: Step(4), layer: LayerId(layer), digest, length: 10 }
    }

    fn put(
        checkpoint_thread: &CheckpointThread,
        events: &mut mpsc::Receiver<StoreEvent>,
        layer: u32,
    ) -> Option<String> {
        let floats = || vec![layer as f32; 5].into();
        let w = floats();
        let m = floats();
        let v = floats();
        let image = LayerImage { layer: LayerId(layer), version: Step(4), w, m, v };
        checkpoint_thread
            .put(piece(layer), Arc::new(LayerSnapshot::new(Arc::new(image))))
            .expect("room");
        let reported = events.blocking_recv().expect("the thread lives");
        let StoreEvent::Put { outcome, .. } = reported else { panic!("{reported:?}") };
        outcome.err().map(|(failure, _)| failure.to_string())
    }

    #[test]
    fn what_is_ordered_after_another_store_is_in_that_one() {
        let data = tempfile::tempdir().expect("a folder");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let mut stores = OpenStores::new(locations);
        let first = stores.get(&data.path().join("store")).expect("made");
        let (checkpoint_thread, mut events) =
            CheckpointThread::start(stores, Ok(first.clone()), data.path().to_owned())
                .expect("a thread");
        assert_eq!(put(&checkpoint_thread, &mut events, 0), None);
        checkpoint_thread.use_store(data.path().join("disk/one")).expect("room");
        assert_eq!(put(&checkpoint_thread, &mut events, 1), None);
        let second = checkpoint_thread.store().expect("in use");
        let has = |store: &SledStore, layer| store.get(piece(layer).name()).is_ok();
        assert_eq!((has(&first, 0), has(&first, 1)), (true, false));
        assert_eq!((has(&second, 0), has(&second, 1)), (false, true));
        assert!(checkpoint_thread.find(&BulkKey::Piece(piece(1))).is_some());
        assert!(checkpoint_thread.find(&BulkKey::Piece(piece(0))).is_none());
    }

    #[test]
    fn a_store_that_has_stopped_is_opened_again_with_what_it_had() {
        const ATTEMPTS_MAX: u32 = 10_000;
        let data = tempfile::tempdir().expect("a folder");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let mut stores = OpenStores::new(locations);
        let folder = data.path().join("store");
        let store = stores.get(&folder).expect("made");
        let (checkpoint_thread, mut events) =
            CheckpointThread::start(stores, Ok(store), data.path().to_owned()).expect("a thread");
        assert_eq!(put(&checkpoint_thread, &mut events, 0), None);
        // A commit looks into this folder, and the index makes it as it is opened.
        std::fs::remove_dir_all(folder.join("index/blobs")).expect("it is there");
        assert!(put(&checkpoint_thread, &mut events, 1).is_some(), "it stops");
        // Nobody may read from it just then, which the thread that scrubs may.
        let mut attempts = 0..ATTEMPTS_MAX;
        assert!(attempts.any(|_| put(&checkpoint_thread, &mut events, 2).is_none()));
        let has = |layer| checkpoint_thread.find(&BulkKey::Piece(piece(layer))).is_some();
        assert!(has(0) && has(2));
    }

    #[test]
    fn a_store_that_could_not_be_opened_at_the_start_is_opened_later() {
        let data = tempfile::tempdir().expect("a folder");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let stores = OpenStores::new(locations);
        let closed = Err((data.path().join("store"), StoreOpeningFault::Io));
        let (checkpoint_thread, mut events) =
            CheckpointThread::start(stores, closed, data.path().to_owned()).expect("a thread");
        assert_eq!(put(&checkpoint_thread, &mut events, 0), None);
        assert!(checkpoint_thread.find(&BulkKey::Piece(piece(0))).is_some());
    }

    #[test]
    fn without_its_store_a_node_keeps_nothing_and_says_so() {
        let data = tempfile::tempdir().expect("a folder");
        std::fs::write(data.path().join("file"), "in the way").expect("writable");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let mut stores = OpenStores::new(locations);
        let first = stores.get(&data.path().join("store")).expect("made");
        let (checkpoint_thread, mut events) =
            CheckpointThread::start(stores, Ok(first), data.path().to_owned()).expect("a thread");
        checkpoint_thread.use_store(data.path().join("file/one")).expect("room");
        let event = events.blocking_recv().expect("the thread lives");
        assert!(
            matches!(event, StoreEvent::Failed { failure: StoreWriteError::Place(_) }),
            "{event:?}"
        );
        assert_eq!(put(&checkpoint_thread, &mut events, 1).as_deref(), Some("there is no store"));
        assert!(checkpoint_thread.find(&BulkKey::Piece(piece(1))).is_none());
        checkpoint_thread.use_store(data.path().join("store")).expect("room");
        assert_eq!(put(&checkpoint_thread, &mut events, 1), None, "another job, another store");
    }
}
