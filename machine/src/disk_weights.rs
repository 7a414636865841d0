//! A file of weights on this machine's disk, read piece by piece.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zbelastic_trainer::hf::WeightBytes;

/// An open file of weights. It stays readable if its name is removed.
pub struct DiskWeights {
    file: File,
    length: u64,
}

impl DiskWeights {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, length })
    }
}

impl WeightBytes for DiskWeights {
    fn len(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}
