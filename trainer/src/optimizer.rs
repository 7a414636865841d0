//! AdamW with a learning-rate schedule, in two halves: a candidate beside the state, and a commit.

mod config;
mod update;

pub use config::{DecayOn, LrDecay, OptimizerConfig};
pub use update::{
    Update, clip_coefficient, commit, compute_candidate, drop_candidate, replay, skip, square_sums,
    square_sums_ahead, update_in_place,
};
