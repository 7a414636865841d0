//! The types that every package shares: ids and units, without decisions.
//!
//! An id is a newtype, so a step cannot be passed where a microbatch is meant. The terms are
//! defined in `docs/glossary.md`; a term that is not there does not belong here.

mod digest;
mod fingerprint;
mod ids;
mod layers;
mod units;

pub use digest::Digest;
pub use fingerprint::Fingerprint;
pub use ids::{
    Attempt, ChunkIndex, ClusterId, Generation, Incarnation, LayerId, MicrobatchIndex, NodeId,
    RunId, SliceIndex, StageIndex, Step, TensorIndex,
};
pub use layers::LayerRange;
pub use units::Bytes;
