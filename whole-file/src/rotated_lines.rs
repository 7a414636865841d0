//! Lines of a file that does not grow beyond a limit. The lines before are kept once, in a file
//! beside it: `NAME.1`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file to which lines are appended.
#[derive(Debug)]
pub struct RotatedLines {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl RotatedLines {
    /// Opens it to write behind its lines. One that a process did not write to its end is ended.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let mut file = super::open_to_append(path)?;
        let mut bytes = file.metadata()?.len();
        if bytes > 0 && last_byte(path)? != b'\n' {
            writeln!(file)?;
            bytes += 1;
        }
        Ok(Self { path: path.to_owned(), file, bytes, bytes_max })
    }

    /// Appends a line, to a new file if this one would have more than its bytes.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, line: &str) -> io::Result<()> {
        let bytes = line.len() as u64 + 1;
        if self.bytes > 0 && self.bytes + bytes > self.bytes_max {
            match fs::rename(&self.path, rotated_path(&self.path)) {
                Ok(()) => {}
                // Renamed before, and the new file could not be opened then.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            *self = Self::open(&self.path, self.bytes_max)?;
        }
        // At once, so that no reader finds half a line.
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.bytes += bytes;
        Ok(())
    }
}

/// Bounds a file to which another process appends its lines, and which it holds open: once it has
/// more than `bytes_max`, its lines are copied to the file beside it, and it begins again. A line
/// that is written in between is lost.
///
/// # Errors
/// If it cannot be copied or cut.
pub fn rotate_appended(path: &Path, bytes_max: u64) -> io::Result<()> {
    let length = match fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if length <= bytes_max {
        return Ok(());
    }
    let part = super::part_path(&rotated_path(path));
    fs::copy(path, &part)?;
    fs::rename(&part, rotated_path(path))?;
    super::open_to_append(path)?.set_len(0)
}

fn last_byte(path: &Path) -> io::Result<u8> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut byte = [0];
    file.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// The file with the lines before those of `path`.
#[must_use]
pub fn rotated_path(path: &Path) -> PathBuf {
    let mut before = path.as_os_str().to_owned();
    before.push(".1");
    before.into()
}

/// The whole lines among the last bytes of both files, oldest first. A file that cannot be read is
/// left out.
pub fn last_lines(path: &Path, bytes_max: u64) -> impl Iterator<Item = Vec<u8>> + use<> {
    let length = fs::metadata(path).map_or(0, |found| found.len());
    let parts = [
        (rotated_path(path), bytes_max.saturating_sub(length)),
        (path.to_owned(), length.min(bytes_max)),
    ];
    parts.into_iter().filter_map(|(path, bytes)| lines_of(&path, bytes)).flatten()
}

fn lines_of(path: &Path, bytes_max: u64) -> Option<impl Iterator<Item = Vec<u8>> + use<>> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let start = length.saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(start)).ok()?;
    // What is appended from now on is not read.
    let mut reader = BufReader::new(file.take(length - start));
    if start > 0 {
        let mut torn = Vec::new();
        reader.read_until(b'\n', &mut torn).ok()?;
    }
    Some(reader.split(b'\n').map_while(Result::ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_not_written_to_its_end_spoils_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        fs::write(&path, "whole\nto").expect("written");
        for line in ["next", "last"] {
            RotatedLines::open(&path, 99).and_then(|mut file| file.write(line)).expect("room");
        }
        assert_eq!(fs::read_to_string(&path).expect("there"), "whole\nto\nnext\nlast\n");
    }

    /// As after a rename behind which no new file could be opened.
    #[test]
    fn a_file_that_is_gone_is_begun_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        let mut file = RotatedLines::open(&path, 10).expect("room");
        file.write("whole one").expect("room");
        fs::rename(&path, rotated_path(&path)).expect("the folder is writable");
        file.write("next").expect("it is begun");
        let read = |path: &Path| fs::read_to_string(path).expect("there");
        assert_eq!(
            (read(&path), read(&rotated_path(&path))),
            ("next\n".into(), "whole one\n".into())
        );
    }

    #[test]
    fn a_file_that_another_process_appends_to_begins_again_and_keeps_what_was_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("worker.log");
        rotate_appended(&path, 20).expect("there is none");
        let mut log = crate::open_to_append(&path).expect("room");
        for number in 10..40 {
            writeln!(log, "line {number}").expect("room");
            rotate_appended(&path, 20).expect("room");
            let lines: Vec<Vec<u8>> = last_lines(&path, u64::MAX).collect();
            let last = lines.last().map(|line| String::from_utf8_lossy(line).into_owned());
            assert_eq!(last, Some(format!("line {number}")));
            assert!(fs::metadata(&path).expect("there").len() <= 20);
        }
        let read = |path: &Path| fs::read_to_string(path).expect("there");
        assert_eq!(read(&rotated_path(&path)), "line 37\nline 38\nline 39\n");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 2);
    }

    #[test]
    fn the_file_does_not_grow_for_ever_and_its_last_lines_are_read_of_both() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.jsonl");
        for number in 10..90 {
            // As a process that is started again and again.
            RotatedLines::open(&path, 10)
                .and_then(|mut file| file.write(&format!("e{number}")))
                .expect("room");
        }
        let read = |path: &Path| fs::read_to_string(path).expect("there");
        assert_eq!(read(&rotated_path(&path)), "e86\ne87\n");
        assert_eq!(read(&path), "e88\ne89\n");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 2);
        let check = |bytes_max, expected: &[&str]| {
            let lines: Vec<Vec<u8>> = last_lines(&path, bytes_max).collect();
            assert_eq!(lines, expected.iter().map(|line| line.as_bytes()).collect::<Vec<_>>());
        };
        check(99, &["e86", "e87", "e88", "e89"]);
        // The first one of the file before may not be whole.
        check(14, &["e87", "e88", "e89"]);
        check(8, &["e88", "e89"]);
        check(6, &["e89"]);
        assert_eq!(last_lines(&folder.path().join("none"), 9).count(), 0);
    }
}
