//! Checkpoints in the folders of nodes none of which runs: those of a run folder between two
//! commands.
//!
//! A controller's store has the manifests, and each layer's piece lies with any of the nodes. What
//! is read is checked twice: chunks against their names, and layers against the digest that the
//! cluster agreed on.

use std::path::{Path, PathBuf};

use zbelastic_checkpoint::{
    CheckpointStore as _, CheckpointStoreError, Manifest, PieceName, SledStore,
};
use zbelastic_kernels::HostFloats;
use zbelastic_node::cluster::recovery::CheckpointDocument;
use zbelastic_node_folder::stores::{StoreLocations, StoreOpenError};
use zbelastic_node_folder::{FolderLock, NodeDataFolder};
use zbelastic_trainer::digest::{StateDigest, state_digest};
use zbelastic_trainer::elastic::{ImageError, LayerAssembler};
use zbelastic_types::Digest;

/// Folders of nodes at most: a run folder has one for each worker and one more.
const FOLDERS_MAX: usize = 1024;

/// Why a kept checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeptCheckpointError {
    /// A folder cannot be listed.
    #[error("cannot read {}: {source}", folder.display())]
    Folder {
        /// The folder that cannot be listed.
        folder: PathBuf,
        /// The error that the system reports.
        source: std::io::Error,
    },
    /// A store cannot be opened.
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    /// A store cannot be read.
    #[error(transparent)]
    Store(#[from] CheckpointStoreError),
    /// No store has a layer whole.
    #[error("{name} is in none of the stores")]
    Absent {
        /// The piece that is missing.
        name: PieceName,
    },
    /// The bytes of a layer are none.
    #[error("{name} cannot be used: {source}")]
    Image {
        /// The piece that is damaged.
        name: PieceName,
        /// What is wrong with its bytes.
        source: ImageError,
    },
    /// A layer is another one than was agreed on.
    #[error("{name} has digest {found}")]
    Digest {
        /// The piece that is damaged.
        name: PieceName,
        /// The digest of its bytes.
        found: Digest,
    },
}

/// The checkpoints of nodes that do not run, and that do not begin to while this lives.
pub struct KeptCheckpoints {
    _locks: Vec<FolderLock>,
    stores: Vec<SledStore>,
    /// Oldest first, the last run's behind those of the runs before.
    manifests: Vec<Manifest>,
}

impl KeptCheckpoints {
    /// Those in the folders of nodes, which the caller holds.
    ///
    /// # Errors
    /// If a store cannot be opened or read.
    pub fn open(
        folders: &[NodeDataFolder],
        locks: Vec<FolderLock>,
    ) -> Result<Self, KeptCheckpointError> {
        let mut stores = Vec::new();
        let mut manifests = Vec::new();
        for folder in folders {
            let locations = StoreLocations::new(folder.clone());
            let path = locations.last()?;
            if path.is_dir() {
                let store = locations.open(&path)?;
                manifests.extend(store.manifests()?);
                stores.push(store);
            }
        }
        manifests.sort_by_key(|manifest| manifest.version);
        Ok(Self { _locks: locks, stores, manifests })
    }

    /// Steps behind each of them, ascending.
    #[must_use]
    pub fn steps(&self) -> Vec<u64> {
        let mut steps: Vec<u64> =
            self.manifests.iter().map(|manifest| manifest.version.version.0).collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    /// The checkpoint of `step`, or the last one; of several runs that of the last run.
    #[must_use]
    pub fn find(&self, step: Option<u64>) -> Option<&Manifest> {
        let is_meant =
            |manifest: &&Manifest| step.is_none_or(|step| manifest.version.version.0 == step);
        self.manifests.iter().rfind(is_meant)
    }

    /// The digest of a checkpoint's state, if the manifest says how many updates are behind it.
    #[must_use]
    pub fn digest(manifest: &Manifest) -> Option<StateDigest> {
        let document = CheckpointDocument::decode(&manifest.document)?;
        let layers = manifest.layers.iter().map(|name| name.digest);
        Some(state_digest(layers, document.record.ledger.updates()))
    }

    /// The weights of a layer of `len` floats. Its moments are read, checked and dropped.
    ///
    /// # Errors
    /// If no store has it whole.
    pub fn weights(&self, name: PieceName, len: usize) -> Result<HostFloats, KeptCheckpointError> {
        let mut last = KeptCheckpointError::Absent { name };
        for store in &self.stores {
            match read_layer(store, name, len) {
                Ok(Some(weights)) => return Ok(weights),
                Ok(None) => {}
                // Another store may have a whole copy.
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// The data folders of nodes below `cluster`, by name.
///
/// # Errors
/// If it cannot be listed.
pub fn node_folders(cluster: &Path) -> Result<Vec<NodeDataFolder>, KeptCheckpointError> {
    let failed = |source| KeptCheckpointError::Folder { folder: cluster.to_owned(), source };
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(cluster).map_err(failed)?.take(FOLDERS_MAX) {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders.into_iter().map(NodeDataFolder::new).collect())
}

fn read_layer(
    store: &SledStore,
    name: PieceName,
    len: usize,
) -> Result<Option<HostFloats>, KeptCheckpointError> {
    let Some(record) = store.record(name)? else { return Ok(None) };
    let broken = |source| KeptCheckpointError::Image { name, source };
    let mut image = LayerAssembler::new(record.length);
    for chunk in &record.chunks {
        image.push(&store.chunk(*chunk)?).map_err(broken)?;
    }
    let (image, found) = image.finish().map_err(broken)?;
    if found == name.digest && image.layer == name.layer && image.w.len() == len {
        return Ok(Some(image.w));
    }
    Err(KeptCheckpointError::Digest { name, found })
}
