//! The data folder of a node: the place of each file, and which process holds it.
//!
//! ```text
//! identity/        certificate and key of the node
//! admin/           certificate and key of the administrator that ran `init` here, and cluster.json
//! log/             the log that controllers agreed on
//! store/           checkpoints
//! events.jsonl     the events, and events.jsonl.1, the events before these
//! LOCK             held by the process that runs on the folder, with its number inside
//! ```
//!
//! A folder belongs to one process at a time. The lock is the system's, so that of a process that
//! was killed does not stay.

pub mod checked_json;
pub mod node_record;
pub mod stores;

use std::env;
use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use zbelastic_checkpoint::FolderError;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, cannot_write};

use checked_json::CheckedError;

/// The folder where neither a flag nor the environment names one.
const FOLDER_DEFAULT: &str = ".zbelastic";
/// Environment variable that names the data folder.
const FOLDER_VARIABLE: &str = "ZBELASTIC_DATA_DIR";
/// Most bytes of `cluster.json` and of `LOCK`.
const SMALL_FILE_MAX: u64 = 64 << 10;

/// Where a node's data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDataFolder {
    root: PathBuf,
}

/// Holds a folder for this process, until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    _folder: zbelastic_checkpoint::LockedFolder,
}

/// `admin/cluster.json`: the cluster that the certificate beside it is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminFile {
    /// Name of the cluster.
    pub name: String,
    /// Its id, as certificates write it.
    pub id: String,
    /// Where its controllers were last seen.
    pub addresses: Vec<String>,
}

impl NodeDataFolder {
    /// A folder at this path; nothing is read or written.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder that was typed, else the environment's, else `.zbelastic`.
    #[must_use]
    pub fn of(typed: Option<&Path>) -> Self {
        let typed = typed.map(Path::to_path_buf);
        let environment = || env::var_os(FOLDER_VARIABLE).filter(|value| !value.is_empty());
        let root = typed.or_else(|| environment().map(PathBuf::from));
        Self { root: root.unwrap_or_else(|| PathBuf::from(FOLDER_DEFAULT)) }
    }

    /// Path of the data folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Certificate and key of the node.
    #[must_use]
    pub fn identity(&self) -> PathBuf {
        self.root.join("identity")
    }

    /// Certificate and key of the administrator.
    #[must_use]
    pub fn admin(&self) -> PathBuf {
        self.root.join("admin")
    }

    /// Folder of the log that the controllers agreed on.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Folder of checkpoints, `store/`.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// File of the node's events, `events.jsonl`.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }

    fn lock(&self) -> PathBuf {
        self.root.join("LOCK")
    }

    fn admin_file(&self) -> PathBuf {
        self.admin().join("cluster.json")
    }

    /// Holds the folder for this process; makes it if it is not there.
    ///
    /// # Errors
    /// If another process holds it, if it cannot be used, or if a newer program wrote it.
    pub fn hold(&self) -> Result<FolderLock, CommandFailure> {
        match zbelastic_checkpoint::LockedFolder::open(&self.root) {
            Ok(folder) => Ok(FolderLock { _folder: folder }),
            Err(error) => Err(cannot_hold(&error)),
        }
    }

    /// The process that holds the folder, if there is one.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn holder(&self) -> Result<Option<u32>, CommandFailure> {
        let path = self.lock();
        let wrong = |error: io::Error| cannot_read(&path, &error);
        let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(error)),
        };
        match file.try_lock() {
            Ok(()) => return Ok(None),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
        let mut text = String::new();
        file.rewind().map_err(wrong)?;
        file.take(SMALL_FILE_MAX).read_to_string(&mut text).map_err(wrong)?;
        let number = text.trim().parse::<u32>().ok().filter(|number| *number > 1);
        number.map(Some).ok_or_else(|| {
            let what = format!("{} does not say which process holds it", path.display());
            CommandFailure::new(FailureCode::Internal, what)
        })
    }

    /// Sends SIGINT to the process that holds the folder, as Ctrl-C does: a person wants it gone,
    /// and nothing is to start it again.
    ///
    /// # Errors
    /// If the signal may not be sent.
    pub fn terminate(&self, process: u32) -> Result<(), CommandFailure> {
        let number = i32::try_from(process).ok().and_then(Pid::from_raw);
        let number = number.expect("the number of a process, as it was read");
        match kill_process(number, Signal::INT) {
            // It ended in between, which was the goal.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => {
                let what = format!("cannot signal process {process}: {error}");
                let mut failure = CommandFailure::new(FailureCode::NotAuthorised, what);
                let detail = FailureDetail::new("it belongs to another user");
                failure.details = vec![detail.hint("as the user who started it")];
                Err(failure)
            }
        }
    }

    /// The cluster that the administrator's certificate is of.
    ///
    /// # Errors
    /// If there is none here.
    pub fn read_admin(&self) -> Result<AdminFile, CommandFailure> {
        let path = self.admin_file();
        let read = checked_json::read(&path, SMALL_FILE_MAX);
        let read = read.and_then(|read| read.map(checked_json::CheckedObject::checked).transpose());
        match read {
            Ok(Some(admin)) => Ok(admin),
            Ok(None) => Err(self.no_admin()),
            Err(CheckedError::File(error)) => Err(cannot_read(&path, &error)),
            Err(error @ (CheckedError::Form(_) | CheckedError::Check { .. })) => {
                let what = format!("{} {error}", path.display());
                let mut failure = CommandFailure::new(FailureCode::VerificationFailed, what);
                let detail = FailureDetail::new(
                    "it says which cluster the certificate beside it is of, and where it is",
                );
                failure.details = vec![detail.hint(
                    "the file from a backup; or look at what it says, mend it, and remove its line \"check\"",
                )];
                Err(failure)
            }
        }
    }

    fn no_admin(&self) -> CommandFailure {
        let what = format!("{} has no administrator's certificate", self.root.display());
        let mut failure = CommandFailure::new(FailureCode::NotAuthorised, what);
        let detail = FailureDetail::new(
            "requests need the certificate of `zbelastic init` or `zbelastic login`",
        )
        .hint(
            "run this where `zbelastic init` ran, or name its folder: --data-dir, or \
             ZBELASTIC_DATA_DIR; `zbelastic login` makes one with a token",
        );
        failure.details = vec![detail];
        failure
    }

    /// Writes which cluster the administrator's certificate is of, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_admin(&self, admin: &AdminFile) -> Result<(), CommandFailure> {
        let path = self.admin_file();
        let folder = self.admin();
        fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
        checked_json::write(&path, admin).map_err(|error| match error {
            CheckedError::File(error) => cannot_write(&path, &error),
            error @ (CheckedError::Form(_) | CheckedError::Check { .. }) => {
                CommandFailure::new(FailureCode::Internal, format!("{} {error}", path.display()))
            }
        })
    }
}

/// The failure for a folder that is not held, with a hint.
fn cannot_hold(error: &FolderError) -> CommandFailure {
    let (code, hint) = match error {
        FolderError::InUse { .. } => (
            FailureCode::WrongState,
            "`zbelastic leave` ends its process; another node needs another --data-dir",
        ),
        FolderError::Newer { .. } | FolderError::BadVersion { .. } => {
            (FailureCode::WrongState, "the program that wrote it, or another --data-dir")
        }
        FolderError::NotAFolder { .. } | FolderError::Foreign { .. } => {
            (FailureCode::Usage, "an empty folder, or one that is not there yet")
        }
        FolderError::Unreadable { .. }
        | FolderError::Unwritable { .. }
        | FolderError::ReadOnly { .. } => {
            (FailureCode::OutOfResource, "a folder of this user's own: --data-dir")
        }
        FolderError::File(fault) if fault.is_full() => {
            (FailureCode::OutOfResource, "space on the disk, or another --data-dir")
        }
        FolderError::File(_) => (FailureCode::OutOfResource, "another --data-dir"),
    };
    let mut failure = CommandFailure::new(code, error.to_string());
    failure.details = vec![FailureDetail::new("nothing was changed").hint(hint)];
    failure
}

fn cannot_read(path: &Path, error: &io::Error) -> CommandFailure {
    CommandFailure::new(FailureCode::Usage, format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, NodeDataFolder) {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(parent.path().join("node"));
        (parent, folder)
    }

    #[test]
    fn a_folder_has_one_process() {
        let (_parent, folder) = folder();
        assert_eq!(folder.holder(), Ok(None));
        let hold = folder.hold().expect("free");
        assert_eq!(folder.holder(), Ok(Some(std::process::id())));
        let failure = folder.hold().expect_err("held");
        assert_eq!(failure.code, FailureCode::WrongState);
        drop(hold);
        assert_eq!(folder.holder(), Ok(None));
        folder.hold().expect("free again");
    }

    #[test]
    fn a_lock_that_names_no_process_is_no_order_to_signal_one() {
        let (_parent, folder) = folder();
        let hold = folder.hold().expect("free");
        for text in ["", "0", "1", "-5", "someone"] {
            fs::write(folder.lock(), text).expect("writable");
            assert_eq!(folder.holder().expect_err(text).code, FailureCode::Internal);
        }
        drop(hold);
    }

    #[test]
    fn an_administrator_is_known_by_a_file() {
        let (_parent, folder) = folder();
        let failure = folder.read_admin().expect_err("nobody");
        assert_eq!(failure.code, FailureCode::NotAuthorised);
        let admin = AdminFile {
            name: "wiki".to_owned(),
            id: "0a".repeat(16),
            addresses: vec!["10.0.0.1:7000".to_owned()],
        };
        folder.write_admin(&admin).expect("writable");
        assert_eq!(folder.read_admin(), Ok(admin.clone()));
        fs::write(folder.admin_file(), "{").expect("writable");
        assert_eq!(folder.read_admin().expect_err("damaged").code, FailureCode::VerificationFailed);
        folder.write_admin(&admin).expect("writable");
        let text = fs::read_to_string(folder.admin_file()).expect("there");
        fs::write(folder.admin_file(), text.replace(":7000", ":7008")).expect("writable");
        let failure = folder.read_admin().expect_err("a digit flipped");
        assert_eq!(failure.code, FailureCode::VerificationFailed);
    }
}
