//! A checkpoint: the pieces of one version, and the state that is needed to go on from them.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zbelastic_types::{Digest, LayerId};

use crate::names::{CheckpointId, PieceName};

/// Layers of a manifest at most.
pub const LAYERS_MAX: usize = 1 << 16;
/// Bytes of the document at most: a configuration has a few thousand.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// Bytes of the program's version at most.
pub const PROGRAM_BYTES_MAX: usize = 256;

/// A checkpoint. Its pieces are named by hashes, so it holds no path that could lead elsewhere, and
/// they may lie on any node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Steps sealed before it. There is one manifest of a version.
    pub version: CheckpointId,
    /// Its pieces, in the order of the layers, none left out.
    pub layers: Vec<PieceName>,
    /// The effective configuration of the run, as a document.
    pub document: Vec<u8>,
    /// The hash of the data it was trained on.
    pub data: Digest,
    /// The version of the program that wrote it.
    pub program: String,
    /// The seed of the run.
    pub seed: u64,
}

/// Why a manifest cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ManifestFault {
    /// No layer at all.
    #[error("it names no layer")]
    Empty,
    /// More layers than a model has.
    #[error("{found} layers, at most {LAYERS_MAX}")]
    TooManyLayers {
        /// Number of layers in the manifest.
        found: usize,
    },
    /// A layer is left out, named twice or in another place.
    #[error("layer {found} where layer {expected} should be")]
    WrongLayer {
        /// The layer of that place.
        expected: LayerId,
        /// The one named there.
        found: LayerId,
    },
    /// A piece of another version.
    #[error("layer {layer} is of version {found}, the manifest of version {expected}")]
    WrongVersion {
        /// Index of the layer.
        layer: LayerId,
        /// Version of the manifest.
        expected: CheckpointId,
        /// Version of the piece.
        found: CheckpointId,
    },
    /// The document is too long.
    #[error("a document of {found} bytes, at most {DOCUMENT_BYTES_MAX}")]
    LongDocument {
        /// Length of the document in bytes.
        found: usize,
    },
    /// The version of the program is too long.
    #[error("a program version of {found} bytes, at most {PROGRAM_BYTES_MAX}")]
    LongProgram {
        /// Length of the program version in bytes.
        found: usize,
    },
}

impl Manifest {
    /// Checks the invariants of every manifest.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), ManifestFault> {
        if self.layers.is_empty() {
            return Err(ManifestFault::Empty);
        }
        if self.layers.len() > LAYERS_MAX {
            return Err(ManifestFault::TooManyLayers { found: self.layers.len() });
        }
        for (name, expected) in self.layers.iter().zip((0..).map(LayerId)) {
            if name.layer != expected {
                return Err(ManifestFault::WrongLayer { expected, found: name.layer });
            }
            if name.version != self.version {
                return Err(ManifestFault::WrongVersion {
                    layer: name.layer,
                    expected: self.version,
                    found: name.version,
                });
            }
        }
        if self.document.len() > DOCUMENT_BYTES_MAX {
            return Err(ManifestFault::LongDocument { found: self.document.len() });
        }
        if self.program.len() > PROGRAM_BYTES_MAX {
            return Err(ManifestFault::LongProgram { found: self.program.len() });
        }
        Ok(())
    }
}
