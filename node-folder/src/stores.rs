//! Where a node keeps checkpoints: beside its other data, or in the folder that the job's
//! `checkpoint.dir` names.
//!
//! ```text
//!   DATA/store/                 without checkpoint.dir
//!   DIR/CLUSTER-NODE/           a complete store, index and chunks, with checkpoint.dir = DIR
//!   DATA/store.json             where the store was last
//! ```
//!
//! Index and chunks lie together, so a store's own order of writing holds on any disk: a piece is
//! reported to be kept when its chunks, their names and its record are durable there. Each node has
//! a folder of its own in `DIR`, because several may share it, and one that removes what it does
//! not refer to must not find the files of another.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{CheckpointStoreError, SledStore, aside_of, move_aside};
use zbelastic_policy::store_opening::{ASIDE_MAX, StoreOpeningFault};
use zbelastic_types::{ClusterId, NodeId};

use crate::NodeDataFolder;
use crate::checked_json::{self, CheckedError};

/// The file that holds where the store was last.
const FILE: &str = "store.json";
/// The version of the file's format.
const VERSION: u32 = 1;
/// The size of the file at most, in bytes.
const BYTES_MAX: u64 = 64 << 10;
/// Stores that a process has open at once. None is closed, for a reader may still use it; a job
/// that names one more is refused with [`StoreOpenError::TooMany`].
const STORES_MAX: usize = 16;

/// Why a node has no store now.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The folder cannot be made.
    #[error("{}: {source}", folder.display())]
    Folder {
        /// The folder that cannot be made.
        folder: PathBuf,
        /// Why it cannot be made.
        source: io::Error,
    },
    /// The store was there, and is not any more.
    #[error("{} was this node's store and is not there: is its disk mounted?", folder.display())]
    Gone {
        /// The folder where the store was.
        folder: PathBuf,
    },
    /// The store cannot be opened.
    #[error("{}: {source}", folder.display())]
    Store {
        /// The folder in which the store lies.
        folder: PathBuf,
        /// Why it cannot be opened.
        source: CheckpointStoreError,
    },
    /// Where the store is cannot be written down, or read.
    #[error("{} {source}", file.display())]
    Note {
        /// The file that holds the store's folder.
        file: PathBuf,
        /// Why it cannot be written or read.
        source: CheckedError,
    },
    /// The store is damaged, and so many damaged ones lie beside it that none is begun in its place.
    #[error("{ASIDE_MAX} damaged stores lie beside {} already", folder.display())]
    TooManyAside {
        /// The folder in which the store lies.
        folder: PathBuf,
    },
    /// Too many stores are open.
    #[error("{STORES_MAX} stores are open: restart the node")]
    TooMany,
}

impl StoreOpenError {
    /// The failure that the error means for a node that starts.
    #[must_use]
    pub fn opening_fault(&self) -> StoreOpeningFault {
        match self {
            Self::Store { source, .. } => source.into(),
            Self::TooManyAside { .. } => StoreOpeningFault::Damage,
            Self::Folder { .. } | Self::Gone { .. } | Self::Note { .. } | Self::TooMany => {
                StoreOpeningFault::Place
            }
        }
    }

    /// Why the store in `folder` stays closed with this error.
    #[must_use]
    pub fn closing(self, folder: &Path) -> Self {
        match self.opening_fault() {
            StoreOpeningFault::Damage => Self::TooManyAside { folder: folder.to_owned() },
            StoreOpeningFault::Io | StoreOpeningFault::Store | StoreOpeningFault::Place => self,
        }
    }

    /// The warning that the store with this damage was put aside.
    #[must_use]
    pub fn put_aside_text(&self, aside: &Path) -> String {
        let aside = aside.display();
        format!(
            "{self}; this node's pieces of checkpoints are put aside in {aside}, and it keeps others from now on"
        )
    }
}

#[derive(Serialize, Deserialize)]
struct StoreLocation {
    version: u32,
    folder: PathBuf,
}

/// Where a node's store may lie.
#[derive(Clone, Debug)]
pub struct StoreLocations {
    folder: NodeDataFolder,
}

impl StoreLocations {
    /// The locations for the node with this data folder.
    #[must_use]
    pub const fn new(folder: NodeDataFolder) -> Self {
        Self { folder }
    }

    /// The node's data folder.
    #[must_use]
    pub const fn folder(&self) -> &NodeDataFolder {
        &self.folder
    }

    /// The store's folder with this `checkpoint.dir`. A relative one is below the data folder.
    ///
    /// # Errors
    /// If it cannot be read where the store was last.
    pub fn of_job(
        &self,
        dir: Option<&Path>,
        cluster: ClusterId,
        node: NodeId,
    ) -> Result<PathBuf, StoreOpenError> {
        let Some(dir) = dir else { return Ok(self.folder.store()) };
        // An absolute path replaces the data folder's.
        let dir = self.folder.root().join(dir);
        // A cluster that was recovered has another id, and continues with the store there.
        let last = self.read_location()?.filter(|last| last.parent() == Some(&dir));
        Ok(last.unwrap_or_else(|| dir.join(format!("{cluster}-{node}"))))
    }

    /// The folder in which the store was last.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn last(&self) -> Result<PathBuf, StoreOpenError> {
        Ok(self.read_location()?.unwrap_or_else(|| self.folder.store()))
    }

    fn file(&self) -> PathBuf {
        self.folder.root().join(FILE)
    }

    fn read_location(&self) -> Result<Option<PathBuf>, StoreOpenError> {
        let file = self.file();
        let location_error = |source| StoreOpenError::Note { file: file.clone(), source };
        let read = checked_json::read(&file, BYTES_MAX);
        let read = read.and_then(|read| {
            read.map(checked_json::CheckedObject::checked::<StoreLocation>).transpose()
        });
        match read.map_err(location_error)? {
            Some(StoreLocation { version, .. }) if version != VERSION => {
                let message = format!("version {version}, this program reads {VERSION}");
                Err(location_error(io::Error::new(io::ErrorKind::InvalidData, message).into()))
            }
            note => Ok(note.map(|note| note.folder)),
        }
    }

    /// Writes down where it is now, durably and atomically.
    fn write_location(&self, folder: &Path) -> Result<(), StoreOpenError> {
        let file = self.file();
        let note = StoreLocation { version: VERSION, folder: folder.to_owned() };
        checked_json::write(&file, &note).map_err(|source| StoreOpenError::Note { file, source })
    }

    /// Opens the store in `folder`, which is made unless it was there before.
    ///
    /// # Errors
    /// If it cannot be opened, or was there and is missing.
    pub fn open(&self, folder: &Path) -> Result<SledStore, StoreOpenError> {
        let owned = || folder.to_owned();
        let recorded = self.read_location()?;
        let was_there = recorded.as_deref() == Some(folder);
        if was_there && !folder.exists() {
            return Err(StoreOpenError::Gone { folder: owned() });
        }
        if let Some(parent) = folder.parent() {
            create_all(parent)
                .map_err(|source| StoreOpenError::Folder { folder: parent.to_owned(), source })?;
        }
        let store = SledStore::open(Arc::new(RealFileSystem), folder);
        let store = store.map_err(|source| StoreOpenError::Store { folder: owned(), source })?;
        let is_default = recorded.is_none() && folder == self.folder.store();
        if !was_there && !is_default {
            self.write_location(folder)?;
        }
        Ok(store)
    }
}

/// Makes a folder and those above it, each durable before the next.
fn create_all(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().unwrap_or(Path::new("/"));
    create_all(parent)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    File::open(parent)?.sync_all()
}

/// The stores that this process has opened.
pub struct OpenStores {
    locations: StoreLocations,
    open: BTreeMap<PathBuf, Arc<SledStore>>,
}

impl OpenStores {
    /// No store is open yet.
    #[must_use]
    pub const fn new(locations: StoreLocations) -> Self {
        Self { locations, open: BTreeMap::new() }
    }

    /// The store in a folder.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn get(&mut self, folder: &Path) -> Result<Arc<SledStore>, StoreOpenError> {
        if let Some(store) = self.open.get(folder) {
            return Ok(store.clone());
        }
        if self.open.len() >= STORES_MAX {
            return Err(StoreOpenError::TooMany);
        }
        let store = Arc::new(self.locations.open(folder)?);
        self.open.insert(folder.to_owned(), store.clone());
        Ok(store)
    }

    /// Puts the damaged store in a folder aside under a number; the next that is opened there is another one.
    /// Yields where the damaged one is.
    ///
    /// # Errors
    /// If it cannot be moved.
    pub fn put_aside(&mut self, folder: &Path, number: u32) -> Result<PathBuf, StoreOpenError> {
        let aside = aside_of(folder, number);
        let moved = move_aside(folder, &aside);
        moved.map_err(|source| StoreOpenError::Folder { folder: folder.to_owned(), source })?;
        Ok(aside)
    }

    /// The store in a folder is opened anew the next time. It is closed once nobody reads from it.
    pub fn forget(&mut self, folder: &Path) {
        self.open.remove(folder);
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_checkpoint::{CheckpointId, CheckpointStore, PieceName};
    use zbelastic_types::{Digest, LayerId, RunId, Step};

    use super::*;

    const VERSION: CheckpointId = CheckpointId { run: RunId(1), version: Step(4) };
    const NAME: PieceName =
        PieceName { version: VERSION, layer: LayerId(0), digest: Digest([1; 32]) };
    const CLUSTER: ClusterId = ClusterId(0xab);

    fn of_job(locations: &StoreLocations, dir: &Path, node: u64) -> PathBuf {
        locations.of_job(Some(dir), CLUSTER, NodeId(node)).expect("readable")
    }

    #[test]
    fn each_node_has_a_store_of_its_own_in_the_folder_that_a_job_names() {
        let site = tempfile::tempdir().expect("a folder");
        let data = |node: u64| {
            StoreLocations::new(NodeDataFolder::new(site.path().join(node.to_string())))
        };
        let dir = site.path().join("disk/checkpoints");
        for node in [1, 2] {
            fs::create_dir(site.path().join(node.to_string())).expect("a data folder");
            let locations = data(node);
            let folder = of_job(&locations, &dir, node);
            assert_eq!(folder.parent(), Some(dir.as_path()));
            let store = locations.open(&folder).expect("made");
            store.put(NAME, &[node as u8; 10]).expect("room");
            assert_eq!(locations.last().expect("readable"), folder, "found by the next start");
        }
        for node in [1, 2] {
            let locations = data(node);
            let store = locations.open(&locations.last().expect("readable")).expect("there");
            assert_eq!(store.get(NAME).expect("kept"), [node as u8; 10]);
            assert_ne!(locations.last().expect("readable"), site.path().join("1/store"));
        }
    }

    #[test]
    fn a_relative_folder_is_seen_from_the_data_folder_and_none_is_the_usual_one() {
        let data = tempfile::tempdir().expect("a folder");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let found = of_job(&locations, Path::new("big"), 3);
        assert_eq!(found.parent(), Some(data.path().join("big").as_path()));
        let usual = locations.of_job(None, CLUSTER, NodeId(3)).expect("readable");
        assert_eq!(usual, data.path().join("store"));
        assert_eq!(locations.last().expect("readable"), usual);
        drop(locations.open(&usual).expect("made"));
        assert!(!data.path().join(FILE).exists(), "nothing to write down");
    }

    #[test]
    fn a_cluster_begun_by_force_goes_on_with_the_store_that_is_there() {
        let data = tempfile::tempdir().expect("a folder");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let before = of_job(&locations, Path::new("big"), 3);
        drop(locations.open(&before).expect("made"));
        let found = locations.of_job(Some(Path::new("big")), ClusterId(0xcd), NodeId(1));
        assert_eq!(found.expect("readable"), before);
    }

    #[test]
    fn a_store_that_is_gone_is_not_made_anew() {
        let data = tempfile::tempdir().expect("a folder");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let folder = of_job(&locations, Path::new("disk"), 3);
        drop(locations.open(&folder).expect("made"));
        fs::rename(data.path().join("disk"), data.path().join("unmounted")).expect("movable");
        assert!(matches!(locations.open(&folder), Err(StoreOpenError::Gone { .. })));
        fs::rename(data.path().join("unmounted"), data.path().join("disk")).expect("movable");
        assert!(locations.open(&folder).is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let data = tempfile::tempdir().expect("a folder");
        fs::write(data.path().join("file"), "in the way").expect("writable");
        let locations = StoreLocations::new(NodeDataFolder::new(data.path().to_owned()));
        let folder = of_job(&locations, Path::new("file/below"), 3);
        let Err(StoreOpenError::Folder { folder: found, .. }) = locations.open(&folder) else {
            panic!("a file is in the way")
        };
        assert_eq!(found, data.path().join("file/below"));
    }
}
