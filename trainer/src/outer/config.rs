//! The settings of islands, and which are legal.

use serde::{Deserialize, Serialize};
use zbelastic_types::LayerId;

use super::OuterWeights;
use super::schedule::OuterRound;
use super::state::{OuterState, OuterStep, OuterVerdict};

/// Islands of a run at most.
pub const ISLANDS_MAX: u32 = 64;

/// How islands train together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterConfig {
    /// Number of islands.
    pub islands: u32,
    /// Index of this one.
    pub island: u32,
    /// Steps from one exchange of a layer to the next (H of the papers).
    pub every: u64,
    /// Groups of layers that are exchanged at different steps.
    pub fragments: u32,
    /// Steps between the version whose weights are sent and the one that they are mixed into.
    pub overlap: u64,
    /// The share of an island's own weights in the mixture.
    pub local_share: f32,
    /// Learning rate of the outer step.
    pub lr: f32,
    /// Nesterov momentum of the outer step.
    pub momentum: f32,
}

/// Why islands cannot train so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OuterConfigError {
    /// Too few islands, or too many.
    #[error("{found} islands, where 2 to {ISLANDS_MAX} can exchange weights")]
    Islands {
        /// Islands that were requested.
        found: u32,
    },
    /// This island is none of them.
    #[error("island {found} of {islands}, which are counted from 0")]
    Island {
        /// Number of islands.
        islands: u32,
        /// Index that was requested.
        found: u32,
    },
    /// Two islands with one folder.
    #[error("islands {first} and {second} have the same folder")]
    SameFolder {
        /// One of them.
        first: u32,
        /// The other.
        second: u32,
    },
    /// A fragment would be sent before the one before it was mixed in.
    #[error("weights are mixed in {overlap} steps after they were sent, and sent every {every}")]
    Overlap {
        /// Steps from one exchange to the next.
        every: u64,
        /// Steps from sending to mixing.
        overlap: u64,
    },
    /// More fragments than steps in which to send them.
    #[error("{found} fragments, sent one after the other within {every} steps")]
    Fragments {
        /// Steps from one exchange to the next.
        every: u64,
        /// Fragments that were requested.
        found: u32,
    },
    /// The run ends before anything is mixed in.
    #[error("a run of {steps} steps ends before weights sent {overlap} steps ahead are mixed in")]
    Steps {
        /// Steps of the run.
        steps: u64,
        /// Steps from sending to mixing.
        overlap: u64,
    },
}

impl OuterConfig {
    /// Whether a run of so many steps can be trained so.
    ///
    /// # Errors
    /// If not, with the first reason.
    pub fn check(&self, steps: u64) -> Result<(), OuterConfigError> {
        let Self { islands, island, every, fragments, overlap, .. } = *self;
        if !(2..=ISLANDS_MAX).contains(&islands) {
            return Err(OuterConfigError::Islands { found: islands });
        }
        if island >= islands {
            return Err(OuterConfigError::Island { islands, found: island });
        }
        if overlap == 0 || overlap >= every {
            return Err(OuterConfigError::Overlap { every, overlap });
        }
        if fragments == 0 || u64::from(fragments) > every {
            return Err(OuterConfigError::Fragments { every, found: fragments });
        }
        if steps <= overlap {
            return Err(OuterConfigError::Steps { steps, overlap });
        }
        Ok(())
    }

    /// The numbers of the outer step.
    #[must_use]
    pub const fn outer_step(&self) -> OuterStep {
        OuterStep { lr: self.lr, momentum: self.momentum }
    }

    /// The weights that an outer step led to, as they are mixed in. Nothing of an island's own is left
    /// in the last round, and where the step was left out.
    #[must_use]
    pub fn outer_weights(
        &self,
        layer: LayerId,
        round: OuterRound,
        state: &OuterState,
    ) -> OuterWeights {
        let is_whole = round.is_last || state.verdict == OuterVerdict::Skip;
        let local_share = if is_whole { 0.0 } else { self.local_share };
        let weights = state.weights.as_slice().into();
        OuterWeights { layer, version: round.mixed, weights, local_share }
    }

    /// Rounds of each layer that an island goes back over at most, to the oldest checkpoint that it may
    /// have, where checkpoints are made in so many steps and so many are kept: none if that is the
    /// beginning. A run is held after three checkpoints that could not be written, so there may be none
    /// behind as many more.
    #[must_use]
    pub fn rounds_kept(&self, checkpoint_every: u64, checkpoints_kept: u32) -> Option<u64> {
        /// Of checkpoints that could not be written.
        const UNWRITTEN_MAX: u64 = 3;
        let checkpoints = u64::from(checkpoints_kept) + UNWRITTEN_MAX;
        let steps = checkpoint_every.checked_mul(checkpoints).filter(|steps| *steps > 0)?;
        // The round under way, and the one whose state it goes on from.
        Some(steps.div_ceil(self.every) + 2)
    }

    /// The step whose batches of an undivided run this island trains on in its own `step`: islands
    /// deal them out in turn.
    #[must_use]
    pub const fn batches_of(&self, step: u64) -> u64 {
        island_batches(step, (self.islands as u64, self.island as u64))
    }
}

/// The step whose batches of an undivided run are trained on in `step` by one of so many islands, which has
/// this index.
#[must_use]
pub const fn island_batches(step: u64, (islands, island): (u64, u64)) -> u64 {
    step * islands + island
}
