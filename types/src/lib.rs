//! The words every package shares: ids and units, and nothing that decides.
//!
//! An id is a newtype, so a step cannot be passed where a microbatch is meant. What the words
//! mean is written in `docs/glossary.md`; a word that is not there does not belong here.

mod ids;
mod units;

pub use ids::{
    Attempt, ChunkIndex, Generation, LayerId, MicrobatchIndex, StageIndex, Step, TensorIndex,
};
pub use units::Bytes;
