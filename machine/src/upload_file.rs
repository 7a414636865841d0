//! The file of a text or of weights that is uploaded: appended to piece by piece, hashed on the way, and
//! given its name when it is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbelastic_policy::data_chunks::{ChunkHasher, ChunkSize};
use zbelastic_policy::disk_space::DiskSpaceShortage;
use zbelastic_types::{Bytes, Digest};
use zbelastic_whole_file as whole_file;

use crate::data_file::keep_hashes;
use crate::disk_usage;

/// Bytes that are written before they are synced: the last sync is as short as any other, and an
/// answer waits for no more than that.
const SYNC_BYTES: u64 = 64 << 20;

/// A file that an upload is appended to.
pub struct UploadFile {
    file: File,
    partial_path: PathBuf,
    path: PathBuf,
    hasher: ChunkHasher,
    /// Bytes that were not synced yet.
    unsynced: u64,
}

/// The state of an upload after a piece.
pub enum AppendOutcome {
    /// The piece was appended, and more are expected.
    Part(Box<UploadFile>),
    /// All of it is there, durably, under its name.
    Whole,
}

/// Why an upload ends.
#[derive(Debug, thiserror::Error)]
pub enum UploadFault {
    /// The disk fails.
    #[error(transparent)]
    Disk(#[from] io::Error),
    /// The disk has no space for it.
    #[error(transparent)]
    Room(#[from] DiskSpaceShortage),
    /// All of it is there, and is other data than was announced.
    #[error("it hashes to {found:?}")]
    Other {
        /// The hash of what was sent.
        found: Digest,
    },
}

impl UploadFile {
    fn begin(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Not where a file lies that is fetched from another node meanwhile.
        let partial_path = path.with_extension("upload.part");
        let file = whole_file::create(&partial_path)?;
        let hasher = ChunkHasher::new(ChunkSize::BULK);
        Ok(Self { file, partial_path, path: path.to_owned(), hasher, unsynced: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)?;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn complete(self, expected: Digest) -> Result<(), UploadFault> {
        let hashes = self.hasher.finish();
        let found = hashes.name().hash;
        if found != expected {
            return Err(UploadFault::Other { found });
        }
        whole_file::publish(&self.file, &self.partial_path, &self.path)?;
        keep_hashes(&self.path, &hashes);
        Ok(())
    }
}

/// Appends a piece to the file of an upload, which is made at the first, if the piece and the `left` bytes
/// behind it fit on the disk: a full disk would end a controller. Behind the last piece it is `path`.
///
/// # Errors
/// If the disk does not take it, or all of it is not what was expected; nothing of it is left then.
pub fn append_piece(
    file: Option<Box<UploadFile>>,
    path: &Path,
    (bytes, left, expected): (&[u8], u64, Digest),
) -> Result<AppendOutcome, UploadFault> {
    let mut file = match file {
        Some(file) => file,
        None => Box::new(UploadFile::begin(path)?),
    };
    let partial_path = file.partial_path.clone();
    let space = disk_usage(path.parent().unwrap_or(Path::new(".")));
    let space = space.map_or(Ok(()), |space| space.check(Bytes(left + bytes.len() as u64)));
    let written = space.map_err(UploadFault::from).and_then(|()| Ok(file.append(bytes)?));
    let written = written.and_then(|()| {
        if left == 0 {
            file.complete(expected).map(|()| AppendOutcome::Whole)
        } else {
            Ok(AppendOutcome::Part(file))
        }
    });
    if written.is_err() {
        // If it cannot be removed either, it is removed with files that no run refers to.
        let _ = fs::remove_file(partial_path);
    }
    written
}

#[cfg(test)]
mod tests {
    use zbelastic_policy::data::DataName;

    use super::*;

    #[test]
    fn an_upload_gets_its_name_when_it_is_whole_and_what_is_another_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data/one.data");
        let digest = DataName::of(b"all of it").hash;
        let part = append_piece(None, &path, (b"all ", 5, digest)).expect("room");
        let AppendOutcome::Part(file) = part else { panic!("more is expected") };
        assert!(!path.exists());
        let whole = append_piece(Some(file), &path, (b"of it", 0, digest)).expect("room");
        assert!(matches!(whole, AppendOutcome::Whole));
        assert_eq!(fs::read(&path).expect("readable"), b"all of it");

        let other = folder.path().join("data/two.data");
        let fault = append_piece(None, &other, (b"something else", 0, digest)).err();
        assert!(matches!(fault, Some(UploadFault::Other { .. })), "{fault:?}");
        let fault = append_piece(None, &other, (b"a part", 1 << 60, digest)).err();
        assert!(matches!(fault, Some(UploadFault::Room(_))), "{fault:?}");
        let left = fs::read_dir(folder.path().join("data")).expect("readable").count();
        assert_eq!(left, 1, "only what is whole");
    }
}
