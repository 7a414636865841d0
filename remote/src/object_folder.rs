//! A folder of the local disk or of a bucket, into which objects are written.
//!
//! Unlike sources, objects are read whole and have any name. One that is written anew is the old one
//! or the new one, and never a part of either.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use zbelastic_whole_file as whole_file;

use crate::address::{Address, AddressProblem, Scheme, is_address};
use crate::environment::Environment;
use crate::error::{Missing, RemoteError};
use crate::http_client::RetryingConnector;
use crate::retry::{OnRetry, RetryPolicy};
use crate::store::{ReadRange, RemoteStore};

/// Folders below a local one that are looked into: objects have a kind, a part of their name, and a
/// name.
const DEPTH_MAX: usize = 3;

/// A folder of objects.
pub struct ObjectFolder {
    kind: FolderKind,
}

enum FolderKind {
    Local(PathBuf),
    /// Keys begin with the prefix, which is empty or ends with a slash.
    Bucket {
        store: RemoteStore,
        prefix: String,
    },
}

impl ObjectFolder {
    /// The folder at `place`: a path, `s3://`, `gs://` or `az://`. Nothing is read or written yet, and it
    /// need not be there.
    ///
    /// # Errors
    /// If it is no such address, or there are no credentials.
    pub fn open(
        place: &str,
        environment: &Environment,
        policy: RetryPolicy,
        on_retry: OnRetry,
    ) -> Result<Self, RemoteError> {
        if !is_address(place) {
            return Ok(Self { kind: FolderKind::Local(PathBuf::from(place)) });
        }
        let wrong = |problem| RemoteError::Address { problem };
        let address = Address::parse(place).map_err(wrong)?;
        if address.place.scheme == Scheme::Web {
            return Err(wrong(AddressProblem::ReadOnly));
        }
        let connector =
            RetryingConnector { policy, on_retry, plain_host: None, is_redirected: false };
        let store = RemoteStore::open(&address.place, environment, connector)?;
        let folder = address.key.trim_matches('/');
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        Ok(Self { kind: FolderKind::Bucket { store, prefix } })
    }

    /// Writes an object, whole or not at all.
    ///
    /// # Errors
    /// If it is not there afterwards.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<(), RemoteError> {
        match &self.kind {
            FolderKind::Local(folder) => put_file(&folder.join(key), bytes),
            FolderKind::Bucket { store, prefix } => {
                store.put(&format!("{prefix}{key}"), Bytes::copy_from_slice(bytes))
            }
        }
    }

    /// The bytes of an object, which is not empty and has at most so many; none if it is not there.
    ///
    /// # Errors
    /// If it cannot be read, or is longer.
    pub fn get(&self, key: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, RemoteError> {
        match self.fetch(key, bytes_max)? {
            Some((size, bytes)) if size != bytes.len() as u64 => {
                Err(RemoteError::Short { expected: size, found: bytes.len() as u64 })
            }
            found => Ok(found.map(|(_, bytes)| bytes.into())),
        }
    }

    /// Length of an object and its bytes, at most so many; none if it is not there.
    fn fetch(&self, key: &str, bytes_max: usize) -> Result<Option<(u64, Bytes)>, RemoteError> {
        match &self.kind {
            FolderKind::Local(folder) => get_file(&folder.join(key), bytes_max),
            FolderKind::Bucket { store, prefix } => {
                match store.read(&format!("{prefix}{key}"), 0..bytes_max as u64, None) {
                    Ok(ReadRange::Bytes(meta, bytes)) => Ok(Some((meta.size, bytes))),
                    Ok(ReadRange::Other) => Ok(Some((0, Bytes::new()))),
                    Err(RemoteError::NotFound { missing: Missing::Key, .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Reads an object of as many bytes as `into` has; false if it is not there.
    ///
    /// # Errors
    /// If it cannot be read, or has another length.
    pub fn get_exact(&self, key: &str, into: &mut [u8]) -> Result<bool, RemoteError> {
        if let FolderKind::Local(folder) = &self.kind {
            return get_file_exact(&folder.join(key), into);
        }
        let Some((size, bytes)) = self.fetch(key, into.len())? else { return Ok(false) };
        check_length(size, into.len())?;
        // Not the object is short, but the answer.
        if bytes.len() != into.len() {
            let reason = format!("{key}: {} bytes came of {size}", bytes.len());
            return Err(RemoteError::Other { reason });
        }
        into.copy_from_slice(&bytes);
        Ok(true)
    }

    /// The keys of the objects below a folder of this one, in no order.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list(&self, folder: &str) -> Result<Vec<String>, RemoteError> {
        let mut keys = Vec::new();
        match &self.kind {
            FolderKind::Local(root) => list_files(&root.join(folder), folder, 1, &mut keys)?,
            FolderKind::Bucket { store, prefix } => {
                store.list(&format!("{prefix}{folder}/"), &mut |meta| {
                    let key = meta.location.as_ref().strip_prefix(prefix.as_str());
                    keys.extend(key.map(str::to_owned));
                    Ok(())
                })?;
            }
        }
        Ok(keys)
    }

    /// Removes an object, if it is there.
    ///
    /// # Errors
    /// If it may be there still.
    pub fn remove(&self, key: &str) -> Result<(), RemoteError> {
        match &self.kind {
            FolderKind::Local(folder) => {
                let path = folder.join(key);
                whole_file::remove(&path).map_err(|error| local(&path, &error))
            }
            FolderKind::Bucket { store, prefix } => store.remove(&format!("{prefix}{key}")),
        }
    }
}

fn local(path: &Path, error: &io::Error) -> RemoteError {
    RemoteError::Other { reason: format!("{}: {error}", path.display()) }
}

fn put_file(path: &Path, bytes: &[u8]) -> Result<(), RemoteError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let made = fs::create_dir_all(folder).map_err(|error| local(folder, &error));
    made.and_then(|()| whole_file::write(path, bytes).map_err(|error| local(path, &error)))
}

fn check_length(found: u64, expected: usize) -> Result<(), RemoteError> {
    let expected = expected as u64;
    if found == expected { Ok(()) } else { Err(RemoteError::Short { expected, found }) }
}

/// A file and its length; none if it is not there.
fn open_file(path: &Path) -> Result<Option<(fs::File, u64)>, RemoteError> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(local(path, &error)),
    };
    let size = file.metadata().map_err(|error| local(path, &error))?.len();
    Ok(Some((file, size)))
}

fn get_file_exact(path: &Path, into: &mut [u8]) -> Result<bool, RemoteError> {
    let Some((mut file, size)) = open_file(path)? else { return Ok(false) };
    check_length(size, into.len())?;
    file.read_exact(into).map_err(|error| local(path, &error))?;
    Ok(true)
}

/// Length of a file and its bytes, at most so many.
fn get_file(path: &Path, bytes_max: usize) -> Result<Option<(u64, Bytes)>, RemoteError> {
    let Some((file, size)) = open_file(path)? else { return Ok(None) };
    let failed = |error: io::Error| local(path, &error);
    let mut bytes = Vec::new();
    file.take(bytes_max as u64).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some((size, bytes.into())))
}

fn list_files(
    folder: &Path,
    key: &str,
    depth: usize,
    keys: &mut Vec<String>,
) -> Result<(), RemoteError> {
    let failed = |error: io::Error| local(folder, &error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        // Names of this program's objects are letters and digits.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let key = format!("{key}/{name}");
        match entry.file_type().map_err(failed)?.is_dir() {
            true if depth < DEPTH_MAX => list_files(&entry.path(), &key, depth + 1, keys)?,
            true => {}
            false => keys.push(key),
        }
    }
    Ok(())
}
