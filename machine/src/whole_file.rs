//! Small files that are there whole or not at all, and durably once they are synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

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
    write_with(path, |to| to.write_all(bytes))
}

/// The same for content that is written as it is made.
///
/// # Errors
/// If it cannot be made or written; the file before it stays.
pub fn write_with(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let beside = beside(path);
    let written = create(&beside).and_then(|mut file| {
        write(&mut file)?;
        give_name(&file, &beside, path)
    });
    if written.is_err() {
        // If it cannot be removed either, the first error is the one to report.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Where a file lies until it is whole.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    PathBuf::from(beside)
}

/// A new file. A file left under its name is removed, and a link there is not followed: in a folder
/// that others may write to it could lead anywhere.
///
/// # Errors
/// If it cannot be made.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
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

/// Makes a file that is whole durable, and then gives it its name: a power cut leaves no name with
/// nothing behind it.
///
/// # Errors
/// If the medium fails.
pub fn give_name(file: &File, beside: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::{beside, open_to_append, read, write};

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
        symlink(&other, beside(&path)).expect("writable");
        symlink(&other, &path).expect("writable");
        let error = open_to_append(&path).expect_err("a link").to_string();
        assert!(error.contains("symbolic link"), "{error}");
        write(&path, b"ours").expect("writable");
        open_to_append(&path).expect("a file");
        assert_eq!(fs::read(&other).expect("readable"), b"untouched");
        assert_eq!(fs::read(&path).expect("readable"), b"ours");
        assert!(!fs::symlink_metadata(&path).expect("there").is_symlink());
    }
}
