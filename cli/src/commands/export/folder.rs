//! A folder that is there whole or not at all: its files are written beside it, and the folder is
//! renamed once all of them are durable.
//!
//! What a killed command left beside is removed by the next one, which a lock of the system keeps
//! from removing the files of a command that still runs.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbelastic_machine::disk_space;
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, cannot_write};

/// Behind the name of a folder that is being written.
const PARTIAL: &str = ".partial";

/// A folder that is being written.
#[derive(Debug)]
pub struct PartialFolder {
    path: PathBuf,
    to: PathBuf,
    /// Open, and locked, as long as it is written.
    lock: File,
}

/// Refuses a folder that has anything in it, before anything is read for it.
///
/// # Errors
/// If it has, or is no folder.
pub fn check_empty(to: &Path) -> Result<(), CommandFailure> {
    let mut entries = match fs::read_dir(to) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot_write(to, &error)),
    };
    let Some(Ok(entry)) = entries.next() else { return Ok(()) };
    let what = format!("{} is not empty", to.display());
    let held = entry.file_name().to_string_lossy().into_owned();
    let detail = FailureDetail::new(format!("there is {held}")).at("--to");
    let detail = detail
        .why("files of another model among those of this one would be loaded with it")
        .hint("--to another folder, or remove what is in this one");
    Err(CommandFailure { code: FailureCode::WrongState, what, details: vec![detail] })
}

impl PartialFolder {
    /// Begins a folder for `needed` bytes.
    ///
    /// # Errors
    /// If the disk has not as many, another command writes the same folder, or it cannot be made.
    pub fn begin(to: &Path, needed: Bytes) -> Result<Self, CommandFailure> {
        let mut name = to.file_name().map(ToOwned::to_owned).unwrap_or_default();
        name.push(PARTIAL);
        let parent = parent_of(to);
        fs::create_dir_all(parent).map_err(|error| cannot_write(parent, &error))?;
        check_space(parent, needed)?;
        let path = parent.join(name);
        let failed = |error: &io::Error| cannot_write(&path, error);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(&error));
            }
            Ok(()) | Err(_) => {}
        }
        let lock = File::open(&path).map_err(|error| failed(&error))?;
        match lock.try_lock() {
            // A file system that knows no locks is trusted to have one user.
            Ok(()) | Err(TryLockError::Error(_)) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(to)),
        }
        for entry in fs::read_dir(&path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            fs::remove_file(entry.path()).map_err(|error| cannot_write(&entry.path(), &error))?;
        }
        Ok(Self { path, to: to.to_owned(), lock })
    }

    /// Where a file of it lies until the folder is whole.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Where all of them lie until then.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file as `write` makes its content.
    ///
    /// # Errors
    /// Those of `write`, or `failed` if the file cannot be made.
    pub fn write<E>(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> Result<(), E>,
        failed: impl FnOnce(io::Error) -> E,
    ) -> Result<(), E> {
        write(&mut File::create_new(self.file(name)).map_err(failed)?)
    }

    /// Writes a small file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_text(&self, name: &str, text: &str) -> Result<(), CommandFailure> {
        let write = |file: &mut File| file.write_all(text.as_bytes());
        self.write(name, write, |error| error)
            .map_err(|error| cannot_write(&self.file(name), &error))
    }

    /// Gives the folder its name: its files are whole.
    ///
    /// # Errors
    /// If something has come into the folder of that name meanwhile, or the disk fails.
    pub fn finish(self) -> Result<(), CommandFailure> {
        self.rename().map_err(|error| {
            self.remove();
            cannot_write(&self.to, &error)
        })
    }

    /// Files first, then the names in the folder, then its own: a power cut leaves no name with
    /// nothing behind it.
    fn rename(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            File::open(entry?.path())?.sync_all()?;
        }
        self.lock.sync_all()?;
        fs::rename(&self.path, &self.to)?;
        File::open(parent_of(&self.to))?.sync_all()
    }

    /// Removes what was written.
    pub fn remove(&self) {
        // What cannot be removed is removed by the next command; the failure that led here is the
        // one to report.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn check_space(parent: &Path, needed: Bytes) -> Result<(), CommandFailure> {
    match disk_space(parent) {
        Ok((free, _)) if free < needed => {
            let what = format!("the disk at {} does not hold the model", parent.display());
            let detail = FailureDetail::new(format!("it has {needed}, {free} are free"));
            let detail = detail.hint("--to a folder on another disk, or --dtype bf16");
            Err(CommandFailure { code: FailureCode::OutOfResource, what, details: vec![detail] })
        }
        // A disk with unreadable free space is not refused: the first file will show.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn in_use(to: &Path) -> CommandFailure {
    let what = format!("another command writes {}", to.display());
    let detail = FailureDetail::new("it is not done yet").at("--to");
    let details = vec![detail.hint("wait for its end, or another folder")];
    CommandFailure { code: FailureCode::WrongState, what, details }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("readable").flatten();
        entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn a_folder_has_its_name_once_it_is_whole() {
        let parent = tempfile::tempdir().expect("a folder");
        let to = parent.path().join("a/model");
        check_empty(&to).expect("nothing is there");
        let partial = PartialFolder::begin(&to, Bytes(1)).expect("room");
        partial.write_text("config.json", "{}").expect("room");
        assert!(!to.exists(), "it is not whole");
        assert_eq!(
            PartialFolder::begin(&to, Bytes(1)).expect_err("under way").code,
            FailureCode::WrongState
        );
        partial.finish().expect("room");
        assert_eq!(names(&to), ["config.json"]);
        assert_eq!(names(&parent.path().join("a")), ["model"], "nothing stays beside it");
        let refused = check_empty(&to).expect_err("not empty");
        assert!(refused.to_string().contains("there is config.json"), "{refused}");
    }

    #[test]
    fn what_a_killed_command_left_is_not_in_the_next_folder() {
        let parent = tempfile::tempdir().expect("a folder");
        let to = parent.path().join("model");
        let killed = PartialFolder::begin(&to, Bytes(1)).expect("room");
        killed.write_text("half.safetensors", "half").expect("room");
        drop(killed);
        fs::create_dir(&to).expect("an empty folder may be there");
        let next = PartialFolder::begin(&to, Bytes(1)).expect("its lock ended with it");
        next.write_text("config.json", "{}").expect("room");
        next.finish().expect("room");
        assert_eq!(names(&to), ["config.json"]);
    }

    #[test]
    fn what_came_into_the_folder_meanwhile_is_kept() {
        let parent = tempfile::tempdir().expect("a folder");
        let to = parent.path().join("model");
        let partial = PartialFolder::begin(&to, Bytes(1)).expect("room");
        fs::create_dir(&to).expect("writable");
        fs::write(to.join("notes.txt"), "mine").expect("writable");
        partial.finish().expect_err("it is not empty any more");
        assert_eq!(names(&to), ["notes.txt"]);
        assert_eq!(names(parent.path()), ["model"], "nothing stays beside it");
    }

    #[test]
    fn a_disk_without_space_is_refused_before_anything_is_written() {
        let parent = tempfile::tempdir().expect("a folder");
        let to = parent.path().join("model");
        let failure = PartialFolder::begin(&to, Bytes(1 << 60)).expect_err("an exbibyte");
        assert_eq!(failure.code, FailureCode::OutOfResource);
        assert!(failure.to_string().contains("--dtype bf16"), "{failure}");
        assert!(names(parent.path()).is_empty());
    }
}
