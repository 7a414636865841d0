//! AdamW and Muon with a learning-rate schedule, in two halves: a candidate beside the state, and a commit.

mod config;
mod decay_rates;
mod kind;
mod update;

pub use config::{LrDecay, OptimizerConfig, WeightDecayScope};
pub use decay_rates::{DecayGroupError, DecayRates};
pub use kind::OptimizerKind;
pub use update::{
    OptimizerUpdate, clip_coefficient, commit, compute_candidate, drop_candidate, replay, skip,
    square_sums, square_sums_ahead, update_in_place,
};
