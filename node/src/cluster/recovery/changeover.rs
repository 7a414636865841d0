//! From the old cluster's files to the new one's, in steps each of which can be the last before the
//! power goes.
//!
//! ```text
//!   recovery.part/   the new cluster's beginning is written; nothing else was touched
//!   recovery/        it is complete and durable: from here on there is no way back
//!                      log       -> before-CLUSTER/log
//!                      admin     -> before-CLUSTER/admin,    recovery/admin    -> admin
//!                      identity  -> before-CLUSTER/identity, recovery/identity -> identity
//! ```
//!
//! The process that holds the folder next, `init` included, makes the steps that are left.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zbelastic_wording::{CommandFailure, FailureCode, cannot_write};

use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::checked_json::{self, CheckedError, CheckedObject};

/// Where the new files are written.
const PART: &str = "recovery.part";
/// Where they wait for their places.
const WHOLE: &str = "recovery";
/// Holds the name of the folder for the old ones.
const RECORD_FILE: &str = "recovery.json";
/// Bytes of it at most.
const RECORD_BYTES_MAX: u64 = 4 << 10;
/// The folders that the old and the new cluster have of their own; of the log the new one has none
/// yet.
const PARTS: [&str; 3] = ["log", "admin", "identity"];
/// Recoveries of one cluster that keep its old files: its folder was put back from a copy each
/// time.
const KEPT_MAX: u32 = 16;

#[derive(Serialize, Deserialize)]
struct ChangeoverRecord {
    /// The name of the folder for the files of the old cluster.
    kept: String,
}

/// A folder that is renamed into another's place.
#[derive(Debug, PartialEq, Eq)]
struct FolderMove {
    from: PathBuf,
    to: PathBuf,
}

/// Has `write` write the new files below a folder of their own, and puts them in the place of the
/// old ones. Yields where those are kept, under the name `before`.
///
/// # Errors
/// If a file cannot be written. Nothing was changed then, or [`finish`] makes the rest.
pub(super) fn change_over(
    folder: &NodeDataFolder,
    before: &str,
    write: impl FnOnce(&NodeDataFolder) -> Result<(), CommandFailure>,
) -> Result<PathBuf, CommandFailure> {
    prepare(folder, before, write)?;
    finish(folder)?.ok_or_else(|| {
        let message = format!("{} is gone", folder.root().join(WHOLE).display());
        CommandFailure::new(FailureCode::Internal, message)
    })
}

/// Writes the files that the new cluster begins with, up to where there is no way back.
fn prepare(
    folder: &NodeDataFolder,
    before: &str,
    write: impl FnOnce(&NodeDataFolder) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let root = folder.root();
    let unfinished = root.join(PART);
    let finished = root.join(WHOLE);
    let failed = |error: io::Error| cannot_write(&unfinished, &error);
    fs::create_dir(&unfinished).map_err(failed)?;
    let named = |number: u32| match number {
        1 => before.to_owned(),
        _ => format!("{before}-{number}"),
    };
    let kept = (1..=KEPT_MAX).map(named).find(|name| !root.join(name).exists());
    let kept = kept.ok_or_else(|| failed(io::ErrorKind::AlreadyExists.into()))?;
    write(&NodeDataFolder::new(unfinished.clone()))?;
    let record = unfinished.join(RECORD_FILE);
    checked_json::write(&record, &ChangeoverRecord { kept })
        .map_err(|error| changeover_failure(&record, error))?;
    let synced = sync(&unfinished)
        .and_then(|()| fs::rename(&unfinished, &finished))
        .and_then(|()| sync(root));
    synced.map_err(failed)
}

/// Completes a recovery that was cut short. Yields where the old files are kept, if there was one
/// that had no way back; the files of one cut short before that are removed.
///
/// # Errors
/// If files cannot be moved, or the folder is not as a recovery leaves it.
pub fn finish(folder: &NodeDataFolder) -> Result<Option<PathBuf>, CommandFailure> {
    let root = folder.root();
    let unfinished = root.join(PART);
    let finished = root.join(WHOLE);
    match fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(cannot_write(&unfinished, &error));
        }
        Ok(()) | Err(_) => {}
    }
    if !finished.is_dir() {
        return Ok(None);
    }
    let record = finished.join(RECORD_FILE);
    let read = checked_json::read(&record, RECORD_BYTES_MAX);
    let read =
        read.and_then(|read| read.map(CheckedObject::checked::<ChangeoverRecord>).transpose());
    let kept = read
        .map_err(|error| changeover_failure(&record, error))?
        .map(|record| root.join(record.kept));
    if let Some(kept) = &kept {
        move_all(root, kept).map_err(|error| cannot_write(kept, &error))?;
        fs::remove_file(&record).map_err(|error| cannot_write(&record, &error))?;
    }
    // It is empty but for files that are not a recovery's, which stay and are reported as an error.
    let removed = fs::remove_dir(&finished).and_then(|()| sync(root));
    removed.map_err(|error| cannot_write(&finished, &error))?;
    Ok(kept)
}

fn move_all(root: &Path, kept: &Path) -> io::Result<()> {
    fs::create_dir_all(kept)?;
    sync(root)?;
    // Each part is moved away once, and its new one moved in once.
    for _ in 0..2 * PARTS.len() {
        let Some(FolderMove { from, to }) = next_move(root, kept, &Path::exists) else { break };
        fs::rename(&from, &to)?;
        // Where it is before where it was: a power cut must not lose both names.
        for folder in [to.parent(), from.parent()].into_iter().flatten() {
            sync(folder)?;
        }
    }
    Ok(())
}

/// The next step, by the folders that are there.
fn next_move(root: &Path, kept: &Path, is_there: &dyn Fn(&Path) -> bool) -> Option<FolderMove> {
    PARTS.iter().find_map(|name| {
        let current = root.join(name);
        let new = root.join(WHOLE).join(name);
        let aside = kept.join(name);
        let is_due = is_there(&new) || *name == "log";
        match (is_there(&current), is_there(&aside)) {
            (true, false) if is_due => Some(FolderMove { from: current, to: aside }),
            (false, _) if is_there(&new) => Some(FolderMove { from: new, to: current }),
            (true | false, true | false) => None,
        }
    })
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn changeover_failure(path: &Path, error: CheckedError) -> CommandFailure {
    match error {
        CheckedError::File(error) => cannot_write(path, &error),
        error @ (CheckedError::Form(_) | CheckedError::Check { .. }) => {
            let message = format!("{} {error}", path.display());
            CommandFailure::new(FailureCode::VerificationFailed, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old() -> (tempfile::TempDir, NodeDataFolder) {
        let site = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(site.path().to_owned());
        for name in PARTS {
            put(&folder.root().join(name), "old");
        }
        (site, folder)
    }

    fn put(folder: &Path, text: &str) {
        fs::create_dir_all(folder).expect("room");
        fs::write(folder.join("text"), text).expect("room");
    }

    fn write_new(folder: &NodeDataFolder) -> Result<(), CommandFailure> {
        put(&folder.identity(), "new");
        put(&folder.admin(), "new");
        Ok(())
    }

    /// What lies where: of the parts, of what is kept of them, and whether anything else is left.
    fn found(
        folder: &NodeDataFolder,
        kept: &str,
    ) -> (Vec<Option<String>>, Vec<Option<String>>, bool) {
        let texts = |root: &Path| {
            let text = |name: &&str| fs::read_to_string(root.join(name).join("text")).ok();
            PARTS.iter().map(text).collect::<Vec<_>>()
        };
        let root = folder.root();
        let is_left = root.join(PART).exists() || root.join(WHOLE).exists();
        (texts(root), texts(&root.join(kept)), is_left)
    }

    fn texts(of: [Option<&str>; 3]) -> Vec<Option<String>> {
        of.map(|text| text.map(str::to_owned)).to_vec()
    }

    /// Cut behind every step: the next start makes the rest, and nothing is lost on the way.
    #[test]
    fn a_recovery_that_is_cut_short_anywhere_is_finished_by_the_next_start() {
        let whole = (texts([None, Some("new"), Some("new")]), texts([Some("old"); 3]), false);
        for steps in 0..=2 * PARTS.len() {
            let (_site, folder) = old();
            prepare(&folder, "before-1", write_new).expect("room");
            let kept = folder.root().join("before-1");
            fs::create_dir_all(&kept).expect("room");
            for _ in 0..steps {
                let Some(FolderMove { from, to }) = next_move(folder.root(), &kept, &Path::exists)
                else {
                    break;
                };
                fs::rename(from, to).expect("room");
            }
            assert_eq!(finish(&folder), Ok(Some(kept)), "{steps}");
            assert_eq!(found(&folder, "before-1"), whole, "{steps}");
            assert_eq!(finish(&folder), Ok(None), "{steps}");
        }
    }

    #[test]
    fn a_recovery_that_is_cut_short_while_it_writes_has_changed_nothing() {
        let (_site, folder) = old();
        let fails = |folder: &NodeDataFolder| {
            write_new(folder).expect("room");
            Err(CommandFailure::new(FailureCode::OutOfResource, "no room"))
        };
        assert!(change_over(&folder, "before-1", fails).is_err());
        assert_eq!(finish(&folder), Ok(None));
        assert_eq!(found(&folder, "before-1"), (texts([Some("old"); 3]), texts([None; 3]), false));
        let kept = change_over(&folder, "before-1", write_new).expect("room");
        assert_eq!(kept, folder.root().join("before-1"));
    }

    /// A folder that was put back from a copy, and is recovered once more.
    #[test]
    fn what_was_kept_before_is_not_written_over() {
        let (_site, folder) = old();
        put(&folder.root().join("before-1/log"), "older");
        let kept = change_over(&folder, "before-1", write_new).expect("room");
        assert_eq!(kept, folder.root().join("before-1-2"));
        assert_eq!(found(&folder, "before-1").1, texts([Some("older"), None, None]));
        assert_eq!(found(&folder, "before-1-2").1, texts([Some("old"); 3]));
    }
}
