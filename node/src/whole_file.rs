//! Small files that are there whole or not at all, and durably once they are told to be.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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
/// If it cannot be written; what was there before stays.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, |to| to.write_all(bytes))
}

/// The same for what is written as it is made.
///
/// # Errors
/// If it cannot be made or written; what was there before stays.
pub fn write_with(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = File::create(&beside).and_then(|mut file| {
        write(&mut file)?;
        // Durable before it has its name: a power cut leaves no name with nothing behind it.
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&beside, path));
    if renamed.is_err() {
        // If it cannot be removed either, the first error says more.
        let _ = fs::remove_file(&beside);
    }
    renamed?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{read, write};

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
        let names = std::fs::read_dir(folder.path()).expect("readable");
        assert_eq!(names.count(), 1, "nothing stays beside it");
    }
}
