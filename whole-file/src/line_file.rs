//! Logs that do not grow for ever.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::open_to_append;

/// A file of lines that does not grow beyond so many bytes; the one before it is kept once.
pub struct LineFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl LineFile {
    /// Opens the file at `path`, to write behind its lines.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = open_to_append(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, bytes, bytes_max })
    }

    /// Adds a line. If it does not fit, the file becomes the one before, beside it under `.1`, in place of
    /// that, and the line is the first of another.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, line: &str) -> io::Result<()> {
        let bytes = line.len() as u64 + 1;
        if self.bytes > 0 && self.bytes + bytes > self.bytes_max {
            let mut before = self.path.as_os_str().to_owned();
            before.push(".1");
            fs::rename(&self.path, before)?;
            *self = Self::open(&self.path, self.bytes_max)?;
        }
        writeln!(self.file, "{line}")?;
        self.bytes += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_events_does_not_grow_for_ever() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        for number in 10..90 {
            // As a process that is started again and again.
            LineFile::open(&path, 10)
                .and_then(|mut file| file.write(&format!("e{number}")))
                .expect("room");
        }
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("there");
        assert_eq!(
            (read("events.jsonl.1"), read("events.jsonl")),
            ("e86\ne87\n".to_owned(), "e88\ne89\n".to_owned())
        );
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 2);
    }
}
