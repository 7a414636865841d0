//! The files of all entries, each once, in an order that does not depend on the machine.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use zbelastic_types::Bytes;

use super::format::SourceFormat;
use super::ranged::SourceStorage;

/// A file of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path or URL.
    pub path: String,
    /// The name that is the same for all paths of the file: the path without links.
    pub canonical: String,
    /// Length of the file, compressed as it is.
    pub bytes: Bytes,
    /// The value that changes when the file is written anew: its time of modification, or an ETag.
    pub version: String,
}

/// The files of a list of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceListing {
    /// The files with their formats: entry by entry, within an entry by path, each once.
    pub files: Vec<(SourceFile, SourceFormat)>,
    /// Number of files that were left out, as they lie in the folder of the store itself.
    pub left_out: usize,
}

/// Why entries give no files.
#[derive(Debug, thiserror::Error)]
pub enum SourceListError {
    /// There is no such file or folder, and it is no glob.
    #[error("{entry} does not exist")]
    NotFound {
        /// The entry, as it was typed.
        entry: String,
    },
    /// A file or folder cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file or folder.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// No glob pattern.
    #[error("{entry} is no glob: {reason}")]
    Glob {
        /// The entry, as it was typed.
        entry: String,
        /// Why not.
        reason: &'static str,
    },
    /// A folder or glob without files of a known format.
    #[error("{entry} has no file of a known format ({})", SourceFormat::EXTENSIONS)]
    NothingMatched {
        /// The entry, as it was typed.
        entry: String,
    },
    /// A file of an unknown format.
    #[error("{path} has no known format ({})", SourceFormat::EXTENSIONS)]
    Format {
        /// The file.
        path: String,
    },
}

impl SourceListing {
    /// Lists the files of `entries`.
    ///
    /// # Errors
    /// If an entry does not exist, cannot be read, or has no file of a known format.
    pub fn of(entries: &[String], storage: &dyn SourceStorage) -> Result<Self, SourceListError> {
        let mut known = BTreeSet::new();
        let mut files = Vec::new();
        for entry in entries {
            let found = storage.list(entry)?;
            if found.is_empty() {
                return Err(SourceListError::NothingMatched { entry: entry.clone() });
            }
            for file in found {
                let format = SourceFormat::of_name(&file.path);
                let format =
                    format.ok_or_else(|| SourceListError::Format { path: file.path.clone() })?;
                // A file that is read twice could be trained on and held out.
                if known.insert(file.canonical.clone()) {
                    files.push((file, format));
                }
            }
        }
        Ok(Self { files, left_out: 0 })
    }

    /// Leaves out the files below a folder, which is given without links.
    pub(crate) fn leave_out(&mut self, folder: &Path) {
        let before = self.files.len();
        self.files.retain(|(file, _)| !Path::new(&file.canonical).starts_with(folder));
        self.left_out += before - self.files.len();
    }

    /// Length of all files, compressed as they are.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.files.iter().map(|(file, _)| file.bytes).sum()
    }
}
