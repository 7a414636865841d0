//! The file system of the operating system.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{EntryKind, FileSystem, FolderEntry, OpenFile};
use zbelastic_whole_file::is_direct_refusal;

/// Rights of a new folder: its owner's alone.
const FOLDER_MODE: u32 = 0o700;
/// Rights of a new file: its owner's alone.
const FILE_MODE: u32 = 0o600;
/// A link in the last part of a path is refused, and opening a pipe does not block.
const OPEN_FLAGS: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;

/// Past the page cache, on systems that have a flag for it.
#[cfg(target_os = "linux")]
const DIRECT_FLAG: Option<i32> = Some(OFlags::DIRECT.bits() as i32);
#[cfg(not(target_os = "linux"))]
const DIRECT_FLAG: Option<i32> = None;

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFileSystem;

impl FileSystem for RealFileSystem {
    fn entry_kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        match fs::symlink_metadata(path) {
            Ok(metadata) => Ok(Some(kind(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(FolderEntry { name, kind: kind(&entry.metadata()?) });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(FOLDER_MODE).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match self.entry_kind(path)? {
                    Some(EntryKind::Folder) => Ok(()),
                    Some(EntryKind::File { .. } | EntryKind::Link | EntryKind::Special) | None => {
                        Err(io::ErrorKind::NotADirectory.into())
                    }
                }
            }
            result => result,
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE).custom_flags(OPEN_FLAGS);
        Ok(Box::new(options.open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(OPEN_FLAGS).open(path)?;
        plain_bytes(&file)?;
        Ok(Box::new(file))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let flag = DIRECT_FLAG.ok_or(io::ErrorKind::Unsupported)?;
        let file = OpenOptions::new().write(true).custom_flags(OPEN_FLAGS | flag).open(path)?;
        plain_bytes(&file)?;
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let (file, expected) = open_to_read(OPEN_FLAGS, path, bytes_max)?;
        let mut bytes = Vec::with_capacity(expected as usize);
        // One byte more than allowed shows a file that grows while it is read.
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }

    fn read_direct(&self, path: &Path, into: &mut [u8]) -> io::Result<usize> {
        match DIRECT_FLAG.map(|flag| read_with(OPEN_FLAGS | flag, path, into)) {
            Some(Err(error)) if is_direct_refusal(&error) => read_with(OPEN_FLAGS, path, into),
            Some(read) => read,
            None => read_with(OPEN_FLAGS, path, into),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?.sync_all()
    }
}

impl OpenFile for File {
    fn write_some(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.write_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        // fdatasync: the bytes and the length, not the time of the last change.
        self.sync_data()
    }

    fn forget_cached(&mut self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&*self, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    }
}

/// Opens a plain file of at most `bytes_max` bytes with these flags. Yields its length too.
fn open_to_read(flags: i32, path: &Path, bytes_max: u64) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let bytes = plain_bytes(&file)?;
    if bytes > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok((file, bytes))
}

/// Reads a plain file that is opened with these flags.
fn read_with(flags: i32, path: &Path, into: &mut [u8]) -> io::Result<usize> {
    let (file, expected) = open_to_read(flags, path, into.len() as u64)?;
    let mut found = 0;
    // As much as there is space for: a direct read is of whole blocks, and stops with the file.
    while (found as u64) < expected {
        match file.read_at(&mut into[found..], found as u64) {
            Ok(0) => break,
            Ok(read) => found += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn kind(metadata: &fs::Metadata) -> EntryKind {
    let kind = metadata.file_type();
    if kind.is_file() {
        EntryKind::File { bytes: metadata.len() }
    } else if kind.is_dir() {
        EntryKind::Folder
    } else if kind.is_symlink() {
        EntryKind::Link
    } else {
        EntryKind::Special
    }
}

fn plain_bytes(file: &File) -> io::Result<u64> {
    match kind(&file.metadata()?) {
        EntryKind::File { bytes } => Ok(bytes),
        EntryKind::Folder => Err(io::ErrorKind::IsADirectory.into()),
        EntryKind::Link | EntryKind::Special => Err(io::ErrorKind::InvalidInput.into()),
    }
}
