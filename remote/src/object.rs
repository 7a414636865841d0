//! An object, read in ranges, that must stay the one that was listed.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use object_store::ObjectMeta;
use zbelastic_data::source::RangedFile;

use crate::error::{Missing, RemoteError};
use crate::store::{ReadRange, RemoteStore};
use crate::windows::Windows;

const ETAG: &str = "etag ";
const TIME: &str = "time ";
/// The sign of an ETag that may be the same for other bytes: a server compares it with nothing.
const WEAK: &str = "W/";

/// What changes when an object is written anew: its ETag, or else when it was, in seconds, which is
/// all that a response's head has.
pub(crate) fn version_of(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        // Azure's lists have no quotation marks, its other responses have.
        Some(tag) => format!("{ETAG}{}", tag.trim_matches('"')),
        None => format!("{TIME}{}", meta.last_modified.timestamp()),
    }
}

/// Whether the object with this version is the one that was listed. A server that sends no ETag,
/// but listed one, leaves the length to notice a change by.
fn is_same_version(listed: &str, found: &ObjectMeta) -> bool {
    if listed.starts_with(ETAG) && found.e_tag.is_none() {
        return true;
    }
    let without_tag = ObjectMeta { e_tag: None, ..found.clone() };
    let comparable = if listed.starts_with(TIME) { &without_tag } else { found };
    listed == version_of(comparable)
}

/// The condition that a server compares with its object.
fn if_match(listed: &str) -> Option<String> {
    let tag = listed.strip_prefix(ETAG).filter(|tag| !tag.starts_with(WEAK))?;
    Some(format!("\"{tag}\""))
}

/// An object that was listed.
pub(crate) struct RemoteObject {
    store: Arc<RemoteStore>,
    key: String,
    len: u64,
    version: String,
    /// What was read last. Locked for a read: readers of one object take turns.
    windows: Mutex<Windows>,
}

impl RemoteObject {
    pub(crate) fn new(store: Arc<RemoteStore>, key: String, len: u64, version: String) -> Self {
        Self { store, key, len, version, windows: Mutex::default() }
    }

    /// Reads `count` bytes from `offset` on, all of them.
    fn read_range(&self, offset: u64, count: u64) -> Result<Bytes, RemoteError> {
        let range = offset..offset + count;
        let read = self.store.read(&self.key, range, if_match(&self.version)).map_err(gone)?;
        let (meta, bytes) = match read {
            ReadRange::Bytes(meta, bytes) => (meta, bytes),
            ReadRange::Other => return Err(self.changed("another".to_owned())),
        };
        if meta.size != self.len || !is_same_version(&self.version, &meta) {
            return Err(self.changed(format!("{} bytes, {}", meta.size, version_of(&meta))));
        }
        let found = bytes.len() as u64;
        if found != count {
            return Err(RemoteError::Short { expected: count, found });
        }
        Ok(bytes)
    }

    fn changed(&self, found: String) -> RemoteError {
        RemoteError::Changed { expected: format!("{} bytes, {}", self.len, self.version), found }
    }
}

/// An object that was listed and is not there any more.
fn gone(error: RemoteError) -> RemoteError {
    if let RemoteError::NotFound { place, missing: Missing::Key } = error {
        RemoteError::NotFound { place, missing: Missing::Gone }
    } else {
        error
    }
}

impl RangedFile for RemoteObject {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        if into.is_empty() || offset >= self.len {
            return Ok(0);
        }
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.get(offset).is_none() {
            let count = windows.bytes_to_read(offset, into.len(), self.len);
            let bytes = self.read_range(offset, count).map_err(io::Error::other)?;
            windows.put(offset, bytes);
        }
        let held = windows.get(offset).expect("it is held, or was just read");
        let count = held.len().min(into.len());
        into[..count].copy_from_slice(&held[..count]);
        Ok(count)
    }
}
