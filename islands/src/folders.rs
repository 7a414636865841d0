//! The folders of all islands: one to write, the others to read.

use std::fmt;

use zbelastic_remote::{ObjectFolder, RemoteError};
use zbelastic_types::{LayerId, Step};

use crate::object::{ObjectError, WeightsObject};

/// What is written of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightsKind {
    /// An island's own weights, for the others.
    Sent,
    /// The state of the outer optimizer.
    Outer,
}

impl WeightsKind {
    const fn folder(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Outer => "outer",
        }
    }
}

/// Why a folder did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder or the server.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// An object is damaged.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// Where islands read and write objects.
pub trait IslandFolders {
    /// An object of an island; none if it is not there.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    fn read(&self, island: u32, key: ObjectKey) -> Result<Option<WeightsObject>, FolderError>;

    /// Writes an object of this island, whole and durable or not at all.
    ///
    /// # Errors
    /// If it is not there afterwards.
    fn write(&self, key: ObjectKey, object: &WeightsObject) -> Result<(), FolderError>;

    /// Removes objects of a kind and a layer of this island that are of an earlier version than this.
    ///
    /// # Errors
    /// If some may be there still.
    fn remove_before(&self, key: ObjectKey) -> Result<(), FolderError>;
}

/// The name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// What it is.
    pub kind: WeightsKind,
    /// The layer.
    pub layer: LayerId,
    /// The version.
    pub version: Step,
}

impl ObjectKey {
    /// The folder of a layer's objects of this kind.
    fn folder(self) -> String {
        format!("{}/{:05}", self.kind.folder(), self.layer.0)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:020}", self.folder(), self.version.0)
    }
}

/// Folders of the local disk, or buckets.
pub struct ObjectFolders {
    folders: Vec<ObjectFolder>,
    island: u32,
    floats_max: usize,
}

impl ObjectFolders {
    /// The folder of each island, of which `island` is this one's; no layer has more floats.
    #[must_use]
    pub const fn new(folders: Vec<ObjectFolder>, island: u32, floats_max: usize) -> Self {
        Self { folders, island, floats_max }
    }

    fn own(&self) -> &ObjectFolder {
        &self.folders[self.island as usize]
    }
}

/// Bytes of a part of an object. A server sends and receives each in a request of its own: it fits into one, and
/// a slow link carries it before the request is given up.
const PART_BYTES: usize = 8 << 20;
/// What the list of an object's parts begins with, before their number.
const PARTS_TITLE: &str = "zbelastic-island-parts 1 ";
/// Bytes of that list.
const LIST_BYTES_MAX: usize = 64;

fn part_key(key: ObjectKey, part: usize) -> String {
    format!("{key}-{part:05}")
}

/// The number of parts in a list of them.
fn parts_of(list: &[u8], parts_max: usize) -> Option<usize> {
    let list = std::str::from_utf8(list).ok()?.strip_prefix(PARTS_TITLE)?;
    list.trim_end().parse().ok().filter(|count| *count <= parts_max)
}

impl IslandFolders for ObjectFolders {
    fn read(&self, island: u32, key: ObjectKey) -> Result<Option<WeightsObject>, FolderError> {
        let floats_max = match key.kind {
            WeightsKind::Sent => self.floats_max,
            WeightsKind::Outer => 2 * self.floats_max,
        };
        let parts_max = WeightsObject::bytes_max(floats_max).div_ceil(PART_BYTES);
        let folder = &self.folders[island as usize];
        let Some(list) = folder.get(&key.to_string(), LIST_BYTES_MAX)? else { return Ok(None) };
        let count = parts_of(&list, parts_max).ok_or(ObjectError::Title)?;
        let mut bytes = Vec::new();
        for part in 0..count {
            let found = folder.get(&part_key(key, part), PART_BYTES)?;
            bytes.extend(found.ok_or(ObjectError::Part { part })?);
        }
        Ok(Some(WeightsObject::decode(&bytes)?))
    }

    /// The list of the parts is written last.
    fn write(&self, key: ObjectKey, object: &WeightsObject) -> Result<(), FolderError> {
        let bytes = object.encode()?;
        for (part, bytes) in bytes.chunks(PART_BYTES).enumerate() {
            self.own().put(&part_key(key, part), bytes.to_vec())?;
        }
        let count = bytes.len().div_ceil(PART_BYTES);
        Ok(self.own().put(&key.to_string(), format!("{PARTS_TITLE}{count}\n").into_bytes())?)
    }

    /// Lists are removed before their parts.
    fn remove_before(&self, key: ObjectKey) -> Result<(), FolderError> {
        let mut found = self.own().list(&key.folder())?;
        found.sort_unstable();
        for object in found {
            let name = object.rsplit('/').next().unwrap_or_default();
            let version = name.split('-').next().and_then(|version| version.parse().ok());
            if version.is_some_and(|version: u64| version < key.version.0) {
                self.own().remove(&object)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_as_many_parts_as_an_object_may_have() {
        assert_eq!(parts_of(b"zbelastic-island-parts 1 3\n", 3), Some(3));
        for wrong in ["zbelastic-island-parts 1 4\n", "zbelastic-island-parts 2 3\n", "3", "\u{0}"]
        {
            assert_eq!(parts_of(wrong.as_bytes(), 3), None, "{wrong}");
        }
    }
}
