//! A store of files with an index in sled.

use std::path::Path;
use std::sync::Arc;

use crate::error::{FileFault, Operation, StoreError};
use crate::files::Files;
use crate::folder_store::FolderStore;
use crate::sled_database::SledDatabase;

const INDEX: &str = "index";

/// A store on a disk. Implements [`crate::Store`].
pub type SledStore = FolderStore<SledDatabase>;

impl SledStore {
    /// Opens the store in `folder`, which is made if it is not there. Its parent must be there.
    /// What a crash left half written goes; nothing else does.
    ///
    /// # Errors
    /// If it is damaged, has lost something, is another's or of another version. Nothing is made
    /// anew in the place of something.
    pub fn open(files: Arc<dyn Files>, folder: &Path) -> Result<Self, StoreError> {
        files.create_folder(folder).map_err(FileFault::of(Operation::CreateFolder, folder))?;
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            files.sync_folder(parent).map_err(FileFault::of(Operation::SyncFolder, parent))?;
        }
        let path = folder.join(INDEX);
        let index = SledDatabase::open(Arc::clone(&files), &path)
            .map_err(|fault| StoreError::Index { folder: path, fault })?;
        let is_new = index.is_new();
        Self::new(files, folder, index, is_new)
    }
}
