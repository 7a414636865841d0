//! Files of the local disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use glob::MatchOptions;
use zbelastic_types::Bytes;

use super::files::{SourceFile, SourceListError};
use super::format::SourceFormat;
use super::ranged::{RangedFile, SourceStorage};

/// The local disk. Hidden files are left out of folders and globs, and links to folders are not
/// followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalStorage;

impl SourceStorage for LocalStorage {
    fn list(&self, entry: &str) -> Result<Vec<SourceFile>, SourceListError> {
        let path = Path::new(entry);
        if path.is_file() {
            return Ok(vec![source_file(path)?]);
        }
        let mut paths = if path.is_dir() {
            let mut paths = Vec::new();
            list_folder(path, &mut paths)?;
            paths
        } else if entry.contains(['*', '?', '[']) {
            list_glob(entry)?
        } else {
            return Err(SourceListError::NotFound { entry: entry.to_owned() });
        };
        paths.retain(|path| SourceFormat::of_name(&path.to_string_lossy()).is_some());
        paths.sort();
        paths.iter().map(|path| source_file(path)).collect()
    }

    fn open(&self, file: &SourceFile) -> io::Result<Box<dyn RangedFile>> {
        Ok(Box::new(LocalFile(File::open(&file.path)?)))
    }
}

struct LocalFile(File);

impl RangedFile for LocalFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.0.read_at(into, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

fn unreadable(path: &Path, source: io::Error) -> SourceListError {
    SourceListError::Unreadable { path: path.display().to_string(), source }
}

fn source_file(path: &Path) -> Result<SourceFile, SourceListError> {
    let metadata = fs::metadata(path).map_err(|source| unreadable(path, source))?;
    let canonical = fs::canonicalize(path).map_err(|source| unreadable(path, source))?;
    // A file system without times, or a time before 1970, leaves the length to notice a change by.
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    // A path that is not UTF-8 would be opened under another name.
    let text = path.to_str().ok_or_else(|| {
        unreadable(path, io::Error::new(io::ErrorKind::InvalidInput, "its path is not UTF-8"))
    })?;
    Ok(SourceFile {
        path: text.to_owned(),
        canonical: canonical.to_string_lossy().into_owned(),
        bytes: Bytes(metadata.len()),
        version: modified.map_or(0, |since| since.as_nanos()).to_string(),
    })
}

fn list_folder(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), SourceListError> {
    for entry in fs::read_dir(folder).map_err(|source| unreadable(folder, source))? {
        let entry = entry.map_err(|source| unreadable(folder, source))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(|source| unreadable(&path, source))?;
        if kind.is_dir() {
            list_folder(&path, paths)?;
        } else if path.is_file() {
            paths.push(path);
        }
    }
    Ok(())
}

fn list_glob(entry: &str) -> Result<Vec<PathBuf>, SourceListError> {
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    let options = MatchOptions { require_literal_separator: true, ..options };
    let matches = glob::glob_with(entry, options)
        .map_err(|error| SourceListError::Glob { entry: entry.to_owned(), reason: error.msg })?;
    let mut paths = Vec::new();
    for found in matches {
        let path = found.map_err(|error| {
            let path = error.path().display().to_string();
            SourceListError::Unreadable { path, source: error.into() }
        })?;
        if path.is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}
