//! What comes of requests to an exchange.

use std::fmt;

use zbelastic_trainer::outer::OuterWeights;
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_types::{LayerId, Step};

use crate::folders::{FolderError, ObjectKey};

/// Why a request is not answered yet. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// A folder.
    #[error("{key} in the folder of island {island}: {error}")]
    Folder {
        /// Whose folder.
        island: u32,
        /// The object that was to be read or written.
        key: ObjectKey,
        /// What failed.
        error: FolderError,
    },
    /// An object of a run with other settings.
    #[error(
        "the folder of island {island} has weights of a run with other settings: give this run \
         folders of its own"
    )]
    OtherRun {
        /// Whose folder.
        island: u32,
    },
    /// An island went into a round from other weights.
    #[error(
        "island {island} began the round of layer {layer} at version {version} from other weights \
         than this one: islands begin with the same seed or the same model, and their folders hold \
         nothing of an earlier run"
    )]
    Diverged {
        /// The other island.
        island: u32,
        /// The layer.
        layer: LayerId,
        /// The version that was sent.
        version: Step,
    },
    /// The state that a round goes on from is gone.
    #[error(
        "the folder of island {island} lacks the outer state of layer {layer} at version {version}: \
         it was removed, or never written"
    )]
    NoState {
        /// This island.
        island: u32,
        /// The layer.
        layer: LayerId,
        /// The version.
        version: Step,
    },
    /// Floats that are not as many as the layer has.
    #[error(
        "an object of island {island} has {found} floats of layer {layer}, expected {expected}"
    )]
    Length {
        /// Whose object.
        island: u32,
        /// The layer.
        layer: LayerId,
        /// Trained floats of the layer.
        expected: u64,
        /// Floats that it has.
        found: u64,
    },
}

/// What came of requests.
#[derive(Debug)]
pub enum ExchangeEvent {
    /// The weights of a version of a layer are durable.
    Published {
        /// The layer.
        layer: LayerId,
        /// The version.
        version: Step,
    },
    /// An outer step has an outcome.
    Outer(OuterWeights),
    /// An outer step was left out: weights of an island, or the outcome, are not finite.
    Skipped {
        /// The layer.
        layer: LayerId,
        /// The version that the outcome is mixed into.
        version: Step,
    },
    /// A version was published before with other weights, and these stay.
    Stays {
        /// The layer.
        layer: LayerId,
        /// The version.
        version: Step,
    },
    /// A request cannot be answered now.
    Failed(ExchangeError),
}

impl ExchangeEvent {
    /// The input that it is to the runtime of a worker.
    ///
    /// # Errors
    /// With the event, if it is only to be logged.
    pub fn into_input(self) -> Result<RuntimeInput, Self> {
        match self {
            Self::Published { layer, version } => Ok(RuntimeInput::Published { layer, version }),
            Self::Outer(outer) => Ok(RuntimeInput::Outer(outer)),
            Self::Skipped { .. } | Self::Stays { .. } | Self::Failed(_) => Err(self),
        }
    }
}

impl fmt::Display for ExchangeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published { layer, version } => {
                write!(f, "layer {layer} at version {version} was published")
            }
            Self::Outer(OuterWeights { layer, version, .. }) => {
                write!(f, "layer {layer} is mixed into version {version}")
            }
            Self::Skipped { layer, version } => write!(
                f,
                "the outer step of layer {layer} at version {version} is left out: weights of an \
                 island, or what they lead to, are not finite"
            ),
            Self::Stays { layer, version } => write!(
                f,
                "layer {layer} at version {version} was published before with other weights, which \
                 stay: the run went back and left out other steps, or the folder is of another run"
            ),
            Self::Failed(error) => error.fmt(f),
        }
    }
}
