//! Layers as they were sealed, while they are written or sent and training goes on.
//!
//! A snapshot shares the memory of the layer that it was made of, and what holds memory keeps it
//! from being written in place: a COMMIT writes to a copy (docs/decisions/0048). So before a COMMIT
//! the snapshots that their readers are not done with leave memory for a file, all but
//! [`SNAPSHOT_MEMORY_MAX`] of them: a checkpoint or a move costs a process no more memory than that,
//! whatever the layer and however slow the disk or the network (docs/decisions/0085).
//!
//! ```text
//!   take ──▶ shares memory ── release_memory ──▶ in a file that has no name ──▶ dropped with its readers
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use zbelastic_policy::WorkCounter;
use zbelastic_trainer::elastic::{ImageDigester, LayerImage, StateLen, image_bytes};
use zbelastic_transport::BulkBody;
use zbelastic_types::{Bytes, Digest, LayerId, Step};

use crate::disk_usage;

/// The folder of snapshots in that of a node. No file in it has a name for longer than it takes to
/// open it.
pub const LAYER_SNAPSHOTS: &str = "snapshots";
/// The most bytes of snapshots that stay in memory while what they were made of is written.
pub const SNAPSHOT_MEMORY_MAX: Bytes = Bytes(128 << 20);
/// Bytes that are hashed or written at once.
const PIECE_BYTES: usize = 4 << 20;

/// A layer as it was sealed.
#[derive(Debug)]
pub struct LayerSnapshot {
    layer: LayerId,
    version: Step,
    len: StateLen,
    storage: RwLock<SnapshotStorage>,
}

/// Where a snapshot's encoded bytes are read.
#[derive(Debug)]
enum SnapshotStorage {
    Memory(Arc<LayerImage>),
    File(File),
}

impl LayerSnapshot {
    /// A snapshot that stays in memory: of a layer that nothing writes while it is read.
    #[must_use]
    pub fn new(image: Arc<LayerImage>) -> Self {
        let LayerImage { layer, version, .. } = *image;
        let len = image.state_len();
        Self { layer, version, len, storage: RwLock::new(SnapshotStorage::Memory(image)) }
    }

    /// Id of the layer in model order.
    #[must_use]
    pub const fn layer(&self) -> LayerId {
        self.layer
    }

    /// Steps sealed before it.
    #[must_use]
    pub const fn version(&self) -> Step {
        self.version
    }

    /// Bytes of the layer as it travels.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        image_bytes(self.len)
    }

    /// The digest of the layer.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn digest(&self) -> io::Result<Digest> {
        let mut digester = ImageDigester::new(self.bytes());
        self.for_each_piece(|piece| digester.push(piece).map_err(io::Error::other))?;
        digester.finish().map_err(io::Error::other)
    }

    /// Passes on its encoded bytes, in order.
    fn for_each_piece(&self, mut then: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut offset = 0;
        while offset < self.bytes() {
            let left = usize::try_from(self.bytes() - offset).unwrap_or(PIECE_BYTES);
            let piece = &mut piece[..left.min(PIECE_BYTES)];
            self.read(offset, piece)?;
            then(piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn is_in_memory(&self) -> bool {
        let storage = self.storage.read().unwrap_or_else(PoisonError::into_inner);
        matches!(&*storage, SnapshotStorage::Memory(_))
    }

    /// Moves it to a file, and counts the bytes that are written. Readers go on meanwhile.
    fn move_to(&self, mut file: File, written: &WorkCounter) -> io::Result<()> {
        self.for_each_piece(|piece| {
            file.write_all(piece)?;
            written.add(piece.len() as u64);
            Ok(())
        })?;
        *self.storage.write().unwrap_or_else(PoisonError::into_inner) = SnapshotStorage::File(file);
        Ok(())
    }
}

impl BulkBody for LayerSnapshot {
    fn len(&self) -> u64 {
        self.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match &*self.storage.read().unwrap_or_else(PoisonError::into_inner) {
            SnapshotStorage::Memory(image) => {
                let read = image.read_encoded(offset, into);
                read.map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error))
            }
            SnapshotStorage::File(file) => file.read_exact_at(into, offset),
        }
    }
}

/// The snapshots that a process has taken of layers in training. Copies of this share them.
#[derive(Clone, Debug)]
pub struct LayerSnapshots {
    folder: Arc<PathBuf>,
    /// The most bytes of them that stay in memory while what they were made of is written.
    memory_max: Bytes,
    /// In the order in which they are read.
    taken: Arc<Mutex<Vec<Weak<LayerSnapshot>>>>,
    created: Arc<AtomicU64>,
}

impl LayerSnapshots {
    /// None yet. Their files lie in `folder`, which is made when one is needed.
    #[must_use]
    pub fn new(folder: PathBuf, memory_max: Bytes) -> Self {
        let folder = Arc::new(folder);
        Self { folder, memory_max, taken: Arc::default(), created: Arc::default() }
    }

    /// A snapshot of a layer that will be written. One whose floats no buffer shares, as those of a
    /// device with memory of its own, is a copy from the beginning and stays where it is.
    #[must_use]
    pub fn take(&self, image: Arc<LayerImage>) -> Arc<LayerSnapshot> {
        let is_shared = [&image.w, &image.m, &image.v].iter().any(|part| part.is_shareable());
        let snapshot = Arc::new(LayerSnapshot::new(image));
        if !is_shared {
            return snapshot;
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|snapshot| snapshot.strong_count() > 0);
        taken.push(Arc::downgrade(&snapshot));
        snapshot
    }

    /// Moves snapshots to files, all but as many of those that are read first as may stay in memory,
    /// and counts the bytes that are written. One that cannot be moved stays, and costs its copy.
    /// Yields the version of the last one that left memory.
    pub fn release_memory(&self, written: &WorkCounter) -> Option<Step> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let alive: Vec<Arc<LayerSnapshot>> = taken.iter().filter_map(Weak::upgrade).collect();
        drop(taken);
        let mut kept = Bytes(0);
        let mut moved = None;
        for snapshot in alive.iter().filter(|snapshot| snapshot.is_in_memory()) {
            let bytes = Bytes(snapshot.bytes());
            if kept + bytes <= self.memory_max {
                kept += bytes;
            } else if self.create(bytes).and_then(|file| snapshot.move_to(file, written)).is_ok() {
                moved = Some(snapshot.version);
            }
        }
        moved
    }

    /// A new file that has lost its name, so that nothing of it is left when the process is killed. It
    /// leaves as much of the disk free as a piece of a checkpoint does.
    fn create(&self, bytes: Bytes) -> io::Result<File> {
        fs::create_dir_all(&*self.folder)?;
        let space = disk_usage(&self.folder);
        // Where free space is not known it is found out by writing.
        space.map_or(Ok(()), |space| space.check(bytes)).map_err(io::Error::other)?;
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(number.to_string());
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let removed = fs::remove_file(&path);
        file.and_then(|file| removed.map(|()| file))
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::{BufferViewMut, CpuBackend, DeviceMemory, HostFloats};
    use zbelastic_trainer::elastic::{IMAGE_HEADER_LEN, layer_digest};

    use super::*;

    /// What may stay in memory.
    const MAX: Bytes = Bytes(6 << 20);
    /// Floats of each part of a layer that has half of these bytes.
    const HALF: usize = (MAX.0 / 2 / 12) as usize;

    /// A layer in training: buffers of a device, and their contents shared as a snapshot shares them.
    struct Layer {
        cpu: CpuBackend,
        parts: [<CpuBackend as DeviceMemory>::Buffer; 3],
    }

    impl Layer {
        fn new(floats: usize) -> Self {
            let cpu = CpuBackend::new(1).expect("a thread");
            let part = |_| cpu.allocate(floats).expect("memory");
            let parts = [0, 1, 2].map(part);
            let mut layer = Self { cpu, parts };
            layer.commit(1.0);
            layer
        }

        fn image(&self, layer: u32) -> Arc<LayerImage> {
            let [w, m, v] = self.parts.each_ref().map(|part| self.cpu.share(part));
            Arc::new(LayerImage { layer: LayerId(layer), version: Step(4), w, m, v })
        }

        /// Writes all of it. Yields how many of its parts were written to a copy.
        fn commit(&mut self, value: f32) -> usize {
            let Self { cpu, parts } = self;
            let copied = parts.iter_mut().map(|part| {
                let before = part.as_slice().as_ptr();
                cpu.upload(&[value], BufferViewMut::new(part, 0..1));
                usize::from(part.as_slice().as_ptr() != before)
            });
            copied.sum()
        }
    }

    /// Bytes that were written, and the version of the last snapshot that left memory.
    fn release(snapshots: &LayerSnapshots) -> (u64, Option<Step>) {
        let written = WorkCounter::default();
        let moved = snapshots.release_memory(&written);
        (written.total(), moved)
    }

    fn first_weight(snapshot: &LayerSnapshot) -> f32 {
        let mut bytes = [0; 4];
        snapshot.read(IMAGE_HEADER_LEN as u64, &mut bytes).expect("read");
        f32::from_le_bytes(bytes)
    }

    #[test]
    fn a_layer_is_written_in_place_though_a_snapshot_of_it_is_still_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshots = LayerSnapshots::new(folder.path().join(LAYER_SNAPSHOTS), MAX);
        // One is larger than all that may stay.
        let mut layer = Layer::new(2 * HALF + 10);
        let image = layer.image(0);
        let digest = layer_digest(&image);
        let snapshot = snapshots.take(image);
        assert_eq!(release(&snapshots), (snapshot.bytes(), Some(Step(4))));
        assert_eq!(layer.commit(2.0), 0, "no part of the layer was copied");
        assert_eq!(first_weight(&snapshot), 1.0, "its reader finds it as it was");
        assert_eq!(snapshot.digest().expect("read"), digest);
        assert_eq!(release(&snapshots), (0, None), "it is in its file");
        let files = fs::read_dir(folder.path().join(LAYER_SNAPSHOTS)).expect("a folder");
        assert_eq!(files.count(), 0, "which has no name");
    }

    #[test]
    fn what_may_stay_is_what_is_read_first_and_what_was_read_counts_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshots = LayerSnapshots::new(folder.path().to_owned(), MAX);
        let mut layers = [0; 3].map(|_| Layer::new(HALF - 10));
        let mut images = layers.iter().zip(0..).map(|(layer, id)| layer.image(id));
        let taken: Vec<_> = images.by_ref().map(|image| snapshots.take(image)).collect();
        drop(images);
        assert_eq!(release(&snapshots).0, taken[2].bytes());
        let copied = layers.each_mut().map(|layer| layer.commit(2.0));
        assert_eq!(copied, [3, 3, 0]);
        assert!(taken.iter().all(|snapshot| first_weight(snapshot) == 1.0));
        drop(taken);
        let _next: Vec<_> = layers.iter().map(|layer| snapshots.take(layer.image(7))).collect();
        assert_eq!(release(&snapshots).0, image_bytes(StateLen::full(HALF - 10)));
    }

    #[test]
    fn a_snapshot_is_read_anywhere_as_its_layer_is_encoded_wherever_it_lies() {
        let folder = tempfile::tempdir().expect("a folder");
        // Frozen tensors have no moments.
        for moments in [5, 2, 0] {
            let part = |start: f32, len| {
                let mut floats = HostFloats::zeroed(len).expect("bytes");
                (start as usize..).zip(floats.as_mut_slice()).for_each(|(i, x)| *x = i as f32);
                floats
            };
            let [w, m, v] = [part(1.0, 5), part(100.0, moments), part(1000.0, moments)];
            let image = LayerImage { layer: LayerId(3), version: Step(9), w, m, v };
            let bytes = image.encode();
            let snapshots = LayerSnapshots::new(folder.path().to_owned(), Bytes(0));
            let snapshot = snapshots.take(Arc::new(image));
            check_read(&snapshot, &bytes);
            assert_eq!(release(&snapshots), (bytes.len() as u64, Some(Step(9))));
            check_read(&snapshot, &bytes);
        }
    }

    fn check_read(snapshot: &LayerSnapshot, bytes: &[u8]) {
        assert_eq!(snapshot.len(), bytes.len() as u64);
        for start in 0..bytes.len() {
            for end in start..=bytes.len() {
                let mut found = vec![0; end - start];
                snapshot.read(start as u64, &mut found).expect("within the layer");
                assert_eq!(found, bytes[start..end], "{start}..{end}");
            }
        }
        assert!(snapshot.read(bytes.len() as u64, &mut [0]).is_err());
        assert!(snapshot.read(0, &mut vec![0; bytes.len() + 1]).is_err());
    }

    #[test]
    fn what_finds_no_file_stays_in_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(LAYER_SNAPSHOTS), "in the way").expect("writable");
        let snapshots = LayerSnapshots::new(folder.path().join(LAYER_SNAPSHOTS), MAX);
        let mut layer = Layer::new(2 * HALF + 10);
        let snapshot = snapshots.take(layer.image(0));
        assert_eq!(release(&snapshots), (0, None));
        assert_eq!(layer.commit(2.0), 3);
        assert_eq!(first_weight(&snapshot), 1.0);
    }

    #[test]
    fn a_file_is_not_begun_where_the_disk_is_too_low_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshots = LayerSnapshots::new(folder.path().to_owned(), MAX);
        let refused = snapshots.create(Bytes(u64::MAX)).expect_err("no disk has that");
        assert!(refused.to_string().starts_with("the disk is low"), "{refused}");
        snapshots.create(Bytes(1)).expect("there is space for one byte");
    }
}
