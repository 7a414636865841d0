//! Files that exist under their name whole and durable, or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The path of a file until it is whole.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    PathBuf::from(part)
}

/// Creates the part file of `path`. A file or link that a killed process left is removed first.
pub(crate) fn create_part(path: &Path) -> io::Result<File> {
    let part = part_path(path);
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    File::options().read(true).write(true).create_new(true).open(part)
}

/// Syncs a part file that is whole, renames it to `path`, and syncs the folder.
pub(crate) fn publish(part: &File, path: &Path) -> io::Result<()> {
    part.sync_all()?;
    fs::rename(part_path(path), path)?;
    sync_folder(path)
}

/// Writes and publishes a small file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut part = create_part(path)?;
    part.write_all(bytes)?;
    publish(&part, path)
}

/// Removes a file and syncs its folder. One that is not there is removed already.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder(path),
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
