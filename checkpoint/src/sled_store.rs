//! The store that nodes use.

use crate::folder_store::FolderStore;
use crate::sled_database::SledDatabase;

/// A store of files with an index in sled.
pub type SledStore = FolderStore<SledDatabase>;
