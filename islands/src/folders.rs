//! The folders of all islands: one to write, the others to read.

use std::fmt;

use zbelastic_remote::{ObjectFolder, RemoteError};
use zbelastic_types::{LayerId, Step};

use crate::object::{HEAD_BYTES_MAX, ObjectError, WeightsHead, contents_hash};

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

    /// Vectors of floats in an object: the weights, and of an outer state its momentum.
    pub(crate) const fn vectors(self) -> usize {
        match self {
            Self::Sent => 1,
            Self::Outer => 2,
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
    /// The head of an object of an island; none if the object is not there.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    fn head(&self, island: u32, key: ObjectKey) -> Result<Option<WeightsHead>, FolderError>;

    /// The vectors of an object with this head.
    ///
    /// # Errors
    /// If they cannot be read, or are not those that the head has the hash of.
    fn vectors(
        &self,
        island: u32,
        key: ObjectKey,
        head: &WeightsHead,
    ) -> Result<Vec<Vec<f32>>, FolderError>;

    /// Writes an object of this island, whole and durable or not at all.
    ///
    /// # Errors
    /// If it is not there afterwards.
    fn write(
        &self,
        key: ObjectKey,
        head: &WeightsHead,
        vectors: &[&[f32]],
    ) -> Result<(), FolderError>;

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
}

impl ObjectFolders {
    /// The folder of each island, of which `island` is this one's.
    #[must_use]
    pub const fn new(folders: Vec<ObjectFolder>, island: u32) -> Self {
        Self { folders, island }
    }

    fn own(&self) -> &ObjectFolder {
        &self.folders[self.island as usize]
    }
}

/// Floats of a part of an object, of 8 MiB. A server sends and receives each in a request of its own: it fits into
/// one, and a slow link carries it before the request is given up.
const PART_FLOATS: usize = 2 << 20;

/// The name of a part, with the beginning of the hash in the head: a head that another process overwrites never
/// names parts of that one.
fn part_key(key: ObjectKey, head: &WeightsHead, part: usize) -> String {
    let [a, b, c, d, ..] = head.contents;
    format!("{key}-{:08x}-{part:05}", u32::from_be_bytes([a, b, c, d]))
}

impl IslandFolders for ObjectFolders {
    fn head(&self, island: u32, key: ObjectKey) -> Result<Option<WeightsHead>, FolderError> {
        let found = self.folders[island as usize].get(&key.to_string(), HEAD_BYTES_MAX)?;
        Ok(found.map(|bytes| WeightsHead::decode(&bytes)).transpose()?)
    }

    fn vectors(
        &self,
        island: u32,
        key: ObjectKey,
        head: &WeightsHead,
    ) -> Result<Vec<Vec<f32>>, FolderError> {
        let folder = &self.folders[island as usize];
        let mut vectors = vec![vec![0.0_f32; head.floats as usize]; key.kind.vectors()];
        let parts = vectors.iter_mut().flat_map(|vector| vector.chunks_mut(PART_FLOATS));
        for (part, floats) in parts.enumerate() {
            match folder.get_exact(&part_key(key, head, part), bytemuck::cast_slice_mut(floats)) {
                Ok(true) => {}
                Ok(false) | Err(RemoteError::Short { .. }) => {
                    return Err(ObjectError::Part { part }.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let slices: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        head.check_contents(contents_hash(&slices))?;
        Ok(vectors)
    }

    /// The head is written last.
    fn write(
        &self,
        key: ObjectKey,
        head: &WeightsHead,
        vectors: &[&[f32]],
    ) -> Result<(), FolderError> {
        let parts = vectors.iter().flat_map(|vector| vector.chunks(PART_FLOATS));
        for (part, floats) in parts.enumerate() {
            self.own().put(&part_key(key, head, part), bytemuck::cast_slice(floats))?;
        }
        Ok(self.own().put(&key.to_string(), &head.encode()?)?)
    }

    /// Heads are removed before their parts.
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
