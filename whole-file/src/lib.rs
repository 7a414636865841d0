//! Small files that are there whole or not at all, and durably once they are synced; files that
//! one process holds; large files past the page cache; files of lines that do not grow beyond a limit, and lines that a thread writes; and
//! folders that go with their process.
//!
//! ```text
//!   bytes ──> NAME.part ──> sync ──> rename to NAME ──> sync of the folder
//! ```
//!
//! A process that is killed leaves a part file, which the next write of the file removes. Whether a
//! file's bytes are those that were written is its reader's to check.

mod direct_writer;
mod line_writer;
mod lock;
mod rotated_lines;
mod temporary_folder;

pub use direct_writer::{
    BlocksWritten, DIRECT_BYTES, DirectWriter, direct_start, is_direct_refusal, write_blocks,
};
pub use line_writer::LineWriter;
pub use lock::{LockError, holder_text, lock};
pub use rotated_lines::{RotatedLines, last_lines, rotate_appended, rotated_path};
pub use temporary_folder::TemporaryFolder;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Permissions of a file that only its owner may read and write.
const OWNER_ONLY: u32 = 0o600;
/// Permissions of others, of which the process's mask takes away.
const MODE: u32 = 0o666;

/// The file's bytes; `None` if there is no such file.
///
/// # Errors
/// If it cannot be read, or has more than `bytes_max`.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let length = match fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > bytes_max {
        let what = format!("{length} bytes, at most {bytes_max}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    fs::read(path).map(Some)
}

/// Writes beside the name, renames, and syncs the file and its folder.
///
/// # Errors
/// If it cannot be written; the file before it stays.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(path, MODE, bytes)
}

/// The same for a file that only its owner may read.
///
/// # Errors
/// If it cannot be written; the file before it stays.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(path, OWNER_ONLY, bytes)
}

fn write_as(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let part = part_path(path);
    replace(&part, mode, |file| {
        file.write_all(bytes)?;
        publish(file, &part, path)
    })
}

/// The same for content that is written as it is made, which may be large: past the page cache
/// where it is ([`DirectWriter`]).
///
/// # Errors
/// Those of `write`, or if it cannot be made or written; the file before it stays.
pub fn write_with<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let part = part_path(path);
    replace(&part, MODE, |file| {
        let mut writer = DirectWriter::new(file);
        write(&mut writer)?;
        writer.finish()?;
        Ok(publish(file, &part, path)?)
    })
}

/// Writes a file of a cache, which several processes may write at once: each has a part file of its
/// own. Nothing is synced, so a power cut may leave another content, which the reader has to notice.
///
/// # Errors
/// If it cannot be written; the file before it stays.
pub fn write_to_cache(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = with_suffix(path, &format!(".{}.part", process::id()));
    replace(&part, MODE, |file| {
        file.write_all(bytes)?;
        fs::rename(&part, path)
    })
}

fn replace<E: From<io::Error>>(
    part: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let written = create_with(part, mode).map_err(E::from).and_then(|mut file| write(&mut file));
    if written.is_err() {
        // If it cannot be removed either, the first error is the one to report.
        let _ = fs::remove_file(part);
    }
    written
}

/// The path of a file until it is whole.
#[must_use]
pub fn part_path(path: &Path) -> PathBuf {
    with_suffix(path, ".part")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut longer = path.as_os_str().to_owned();
    longer.push(suffix);
    PathBuf::from(longer)
}

/// A new file to write and read. A file left under its name is removed, and a link there is not
/// followed: in a folder that others may write to it could lead anywhere.
///
/// # Errors
/// If it cannot be made.
pub fn create(path: &Path) -> io::Result<File> {
    create_with(path, MODE)
}

fn create_with(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
}

/// A file to append to, made if it is not there. A link under its name is refused and not followed.
///
/// # Errors
/// If it is a link, or cannot be opened.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let no_link = OFlags::NOFOLLOW.bits() as i32;
    let opened = OpenOptions::new().create(true).append(true).custom_flags(no_link).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => {
            io::Error::new(error.kind(), "it is a symbolic link, which is not followed: remove it")
        }
        Some(_) | None => error,
    })
}

/// Makes a part file that is whole durable, and then gives it its name: a power cut leaves no name
/// with nothing behind it.
///
/// # Errors
/// If the medium fails.
pub fn publish(file: &File, part: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(part, path)?;
    sync_folder_of(path)
}

/// Removes a file durably. One that is not there is removed already.
///
/// # Errors
/// If it cannot be removed, or the medium fails.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder_of(path),
    }
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{
        open_to_append, part_path, read, remove, write, write_private, write_to_cache, write_with,
    };

    #[test]
    fn a_file_takes_the_place_of_the_one_before_and_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        assert_eq!(read(&path, 3).expect("nothing is there"), None);
        write(&path, b"long before").expect("writable");
        write(&path, b"now").expect("writable");
        assert_eq!(read(&path, 3).expect("readable"), Some(b"now".to_vec()));
        let error = read(&path, 2).expect_err("too long");
        assert_eq!(error.to_string(), "3 bytes, at most 2");
        let names = fs::read_dir(folder.path()).expect("readable");
        assert_eq!(names.count(), 1, "nothing stays beside it");
    }

    #[test]
    fn links_that_somebody_planted_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        let other = folder.path().join("of-another");
        fs::write(&other, "untouched").expect("writable");
        symlink(&other, part_path(&path)).expect("writable");
        symlink(&other, &path).expect("writable");
        let error = open_to_append(&path).expect_err("a link").to_string();
        assert!(error.contains("symbolic link"), "{error}");
        write(&path, b"ours").expect("writable");
        open_to_append(&path).expect("a file");
        assert_eq!(fs::read(&other).expect("readable"), b"untouched");
        assert_eq!(fs::read(&path).expect("readable"), b"ours");
        assert!(!fs::symlink_metadata(&path).expect("there").is_symlink());
    }

    type WriteFile = fn(&Path, &[u8]) -> io::Result<()>;

    /// Every way to write a file.
    fn writers() -> [WriteFile; 3] {
        [write, write_private, write_to_cache]
    }

    #[test]
    fn what_cannot_be_written_leaves_the_file_before_and_no_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        write(&path, b"before").expect("writable");
        let error = write_with(&path, |to| {
            to.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert!(error.is_err());
        assert_eq!(fs::read(&path).expect("readable"), b"before");
        for write in writers() {
            // A folder is in the place of the file, so the last step fails.
            let path = folder.path().join("taken");
            fs::create_dir_all(path.join("by")).expect("writable");
            assert!(write(&path, b"whole").is_err());
            assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 2, "no part stays");
        }
    }

    #[test]
    fn private_files_are_their_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key.pem");
        fs::write(part_path(&path), "half").expect("writable");
        write_private(&path, b"whole").expect("writable");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_is_removed_may_be_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        for write in writers() {
            write(&path, b"a").expect("writable");
            assert!(path.exists());
            remove(&path).expect("removable");
            assert!(!path.exists());
            remove(&path).expect("it is gone already");
        }
    }
}
