//! A folder that is there whole or not at all: its files are written beside it, and the folder is
//! renamed once all of them are durable.
//!
//! What a killed command left beside is removed by the next one, if each of its names is one that
//! `export` writes; a lock of the system keeps it from removing the files of a command that still
//! runs.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zbelastic_machine::disk_space;
use zbelastic_tokenizer::TokenizerFiles;
use zbelastic_trainer::hf::{MODEL_CONFIG, WEIGHTS_FILE, WEIGHTS_INDEX};
use zbelastic_types::Bytes;
use zbelastic_whole_file::{self as whole_file, DirectWriter};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, cannot_write};

/// File of how text is generated.
pub const GENERATION_CONFIG: &str = "generation_config.json";
/// File of the model card.
pub const CARD: &str = "README.md";
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
/// If it has, is no folder, or has no name of its own.
pub fn check_empty(to: &Path) -> Result<(), CommandFailure> {
    // A folder that the process stands in, or `..` of one, cannot be replaced by renaming.
    if to.file_name().is_none() {
        let what = format!("{} does not end with a name", to.display());
        let detail = FailureDetail::new(what).at("--to").hint("--to NAME, a new folder");
        return Err(CommandFailure::usage("the folder", vec![detail]));
    }
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
    /// If the disk has not as many, another command writes the same folder, something of another
    /// origin has its name, or it cannot be made.
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
        // Not through a link, which leads to a folder that no export made.
        if !fs::symlink_metadata(&path).map_err(|error| failed(&error))?.is_dir() {
            return Err(not_ours(&path, "it is no folder".to_owned()));
        }
        let lock = File::open(&path).map_err(|error| failed(&error))?;
        match lock.try_lock() {
            // A file system that knows no locks is trusted to have one user.
            Ok(()) | Err(TryLockError::Error(_)) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(to)),
        }
        remove_left(&path)?;
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
    /// Those of `write`, or `failed` if the file cannot be made or its last bytes not written.
    pub fn write<E>(
        &self,
        name: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
        failed: impl Fn(io::Error) -> E,
    ) -> Result<(), E> {
        let file = File::create_new(self.file(name)).map_err(&failed)?;
        let mut writer = DirectWriter::new(&file);
        write(&mut writer)?;
        writer.finish().map_err(failed)
    }

    /// Writes a small file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_text(&self, name: &str, text: &str) -> Result<(), CommandFailure> {
        let write = |file: &mut dyn Write| file.write_all(text.as_bytes());
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
        whole_file::publish(&self.lock, &self.path, &self.to)
    }

    /// Removes what was written.
    pub fn remove(&self) {
        // What cannot be removed is removed by the next command; the failure that led here is the
        // one to report.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what a killed command left: all of it, or nothing if anything there is of another
/// origin.
fn remove_left(path: &Path) -> Result<(), CommandFailure> {
    let failed = |error: &io::Error| cannot_write(path, error);
    let mut left = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| failed(&error))? {
        let entry = entry.map_err(|error| failed(&error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_file = entry.file_type().map_err(|error| failed(&error))?.is_file();
        if !is_file || !is_exported(&name) {
            return Err(not_ours(path, format!("there is {name}")));
        }
        left.push(entry.path());
    }
    for file in left {
        fs::remove_file(&file).map_err(|error| cannot_write(&file, &error))?;
    }
    Ok(())
}

/// Whether `export` writes a file of that name, whole or in part.
fn is_exported(name: &str) -> bool {
    let name = name.strip_suffix(".part").unwrap_or(name);
    let is_shard = |name: &str| {
        name.strip_prefix("model-")
            .and_then(|rest| rest.strip_suffix(".safetensors"))
            .and_then(|rest| rest.split_once("-of-"))
            .is_some_and(|(index, count)| [index, count].into_iter().all(is_number))
    };
    [CARD, MODEL_CONFIG, GENERATION_CONFIG, WEIGHTS_INDEX, WEIGHTS_FILE].contains(&name)
        || TokenizerFiles::NAMES.contains(&name)
        || is_shard(name)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn not_ours(path: &Path, found: String) -> CommandFailure {
    let shown = path.display();
    let what = format!("{shown} is not what an export left");
    let detail = FailureDetail::new(found).at("--to");
    let detail = detail
        .why(
            "the model is written there until it is whole, and only files of an export are removed",
        )
        .hint(format!("--to another folder, or remove {shown}"));
    CommandFailure { code: FailureCode::WrongState, what, details: vec![detail] }
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
        for name in ["model-00001-of-00002.safetensors", "tokenizer.json.part", "config.json"] {
            killed.write_text(name, "half").expect("room");
        }
        drop(killed);
        fs::create_dir(&to).expect("an empty folder may be there");
        let next = PartialFolder::begin(&to, Bytes(1)).expect("its lock ended with it");
        next.write_text("config.json", "{}").expect("room");
        next.finish().expect("room");
        assert_eq!(names(&to), ["config.json"]);
    }

    #[test]
    fn a_folder_without_a_name_is_refused() {
        for to in [".", "..", "x/..", "/", ""] {
            let refused = check_empty(Path::new(to)).expect_err("no name");
            assert_eq!(refused.code, FailureCode::Usage, "{to}");
            assert!(refused.to_string().contains("--to NAME, a new folder"), "{refused}");
        }
    }

    #[test]
    fn what_no_export_left_is_refused_and_stays() {
        let parent = tempfile::tempdir().expect("a folder");
        let to = parent.path().join("model");
        let partial = parent.path().join("model.partial");
        fs::create_dir(&partial).expect("room");
        fs::write(partial.join("config.json"), "{}").expect("room");
        let kept = |name: &str| {
            let refused = PartialFolder::begin(&to, Bytes(1)).expect_err("not of an export");
            assert_eq!(refused.code, FailureCode::WrongState);
            assert!(refused.to_string().contains(&format!("there is {name}")), "{refused}");
            assert_eq!(names(&partial).len(), 2, "nothing is removed");
        };
        for name in ["notes.txt", "thesis.part", "model-mine.safetensors"] {
            fs::write(partial.join(name), "mine").expect("room");
            kept(name);
            fs::remove_file(partial.join(name)).expect("there");
        }
        fs::create_dir(partial.join("README.md")).expect("room");
        kept("README.md");
        fs::remove_dir(partial.join("README.md")).expect("there");
        PartialFolder::begin(&to, Bytes(1)).expect("of an export").remove();

        let elsewhere = parent.path().join("elsewhere");
        fs::create_dir(&elsewhere).expect("room");
        fs::write(elsewhere.join("config.json"), "mine").expect("room");
        std::os::unix::fs::symlink(&elsewhere, &partial).expect("room");
        let refused = PartialFolder::begin(&to, Bytes(1)).expect_err("a link");
        assert!(refused.to_string().contains("it is no folder"), "{refused}");
        assert_eq!(names(&elsewhere), ["config.json"]);
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
