//! Where a socket lies: in a folder that no other user can enter.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::net::UnixStream;

/// The most bytes of a socket's path: the capacity of the system's address.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
const SOCKET_NAME: &str = "local.sock";
const FOLDER_MODE: u32 = 0o700;
/// The permission bits of other users.
const OTHERS_BITS: u32 = 0o077;

/// Why no socket can lie in a folder.
#[derive(Debug, Error)]
pub enum LocalFolderError {
    /// It cannot be made or looked at.
    #[error("{path}: cannot be made or read")]
    Unusable {
        /// Path of the folder.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// There is something else in its place.
    #[error("{path}: is no folder")]
    NoFolder {
        /// Path of the file that is there instead.
        path: PathBuf,
    },
    /// Another user owns it.
    #[error("{path}: belongs to user {found}, expected {expected}")]
    OtherOwner {
        /// Path of the folder.
        path: PathBuf,
        /// User id that this process runs as.
        expected: u32,
        /// User id of the folder's owner.
        found: u32,
    },
    /// Users other than the owner have permissions on it.
    #[error("{path}: has mode {found:o}, expected {FOLDER_MODE:o}")]
    OpenToOthers {
        /// Path of the folder.
        path: PathBuf,
        /// Permission bits of the folder.
        found: u32,
    },
    /// Both the folder's path and that of the folder for temporary files are too long.
    #[error("{path}: longer than the {SOCKET_PATH_BYTES_MAX} bytes a socket's path has")]
    TooLong {
        /// The shorter of the two paths.
        path: PathBuf,
    },
}

/// A folder and the socket in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SocketLocation {
    pub(super) socket: PathBuf,
    /// A folder that was made for the socket alone, because the path of the other was too long.
    pub(super) short_folder: Option<PathBuf>,
}

/// User id that this process runs as.
pub(super) fn own_user() -> io::Result<u32> {
    let (this, _other) = UnixStream::pair()?;
    Ok(this.peer_cred()?.uid())
}

/// The place for a socket in `folder`, or for a path that is too long in a folder below `temporary`
/// which is named after it.
pub(super) fn prepare(
    folder: &Path,
    temporary: &Path,
    user: u32,
) -> Result<SocketLocation, LocalFolderError> {
    let unusable = |source| LocalFolderError::Unusable { path: folder.to_owned(), source };
    let absolute = std::path::absolute(folder).map_err(unusable)?;
    let socket = absolute.join(SOCKET_NAME);
    if is_short(&socket) {
        make_private(&absolute, user)?;
        return Ok(SocketLocation { socket, short_folder: None });
    }
    let digest = blake3::hash(absolute.as_os_str().as_bytes()).to_hex();
    let short_folder = temporary.join(format!("zbelastic-{}", &digest[..16]));
    let socket = short_folder.join(SOCKET_NAME);
    if !is_short(&socket) || !socket.is_absolute() {
        return Err(LocalFolderError::TooLong { path: socket });
    }
    make_private(&short_folder, user)?;
    Ok(SocketLocation { socket, short_folder: Some(short_folder) })
}

fn is_short(path: &Path) -> bool {
    path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX
}

/// Makes `path` if it is not there. An existing folder is not changed, only refused: a mistyped
/// path should not lock others out of a folder that is theirs as well.
fn make_private(path: &Path, user: u32) -> Result<(), LocalFolderError> {
    let owned = || path.to_owned();
    let unusable = |source| LocalFolderError::Unusable { path: owned(), source };
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path).map_err(unusable)?;
    let found = fs::symlink_metadata(path).map_err(unusable)?;
    if !found.is_dir() {
        return Err(LocalFolderError::NoFolder { path: owned() });
    }
    if found.uid() != user {
        let expected = user;
        let found = found.uid();
        return Err(LocalFolderError::OtherOwner { path: owned(), expected, found });
    }
    if found.mode() & OTHERS_BITS != 0 {
        return Err(LocalFolderError::OpenToOthers { path: owned(), found: found.mode() & 0o7777 });
    }
    Ok(())
}
