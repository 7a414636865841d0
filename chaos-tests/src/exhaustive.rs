//! Every order of events of a small world, gone through breadth first.
//!
//! The replicated state is the real one, and so are the deciding functions: [`State::apply`]
//! applies the entries, `StageHalf` applies seals, `OpenTurnReports` decides when one may be
//! proposed, `restore_point` where a run goes on. The modelled parts are small: workers hold
//! versions in place of tensors, and the log is a list of proposals that are agreed on in order, or
//! lost from the end with their leader.
//!
//! ```text
//!  report -> held elsewhere -> proposed -> agreed on -> learned by each worker, one by one
//!                                 |  lost with its leader, or late: after the next plan
//!  a worker dies -> noticed -> plan proposed -> agreed on -> layers fetched -> ready -> resumed
//! ```
//!
//! At every point a worker may die, the leader may change, and a plan may be given up, as often as
//! [`ModelBounds`] say. In every state that can be reached the checks of `check.rs` hold, and the
//! run can end from it. The first violation comes with a shortest way to it.
//!
//! The promise is that of the last plan that ran: the sealed layers are held by a worker that
//! lives, as long as owner or copy does. If both are dead, the run may go back.
//!
//! A worker may also be declared dead and live on. Its reports from then on must not count, and it
//! forgets its layers as soon as it learns of it.
//!
//! Not modelled: activations and the order of operations within a step, gradients that come before
//! the seal of the step before, fenced workers that come back, checkpoints, planned changes, skips
//! and replays.
//!
//! [`State::apply`]: zbelastic_consensus::State::apply

mod actions;
mod check;
mod decide;
mod entries;
mod model_state;
mod search;
mod stages;
mod steps;
mod transition_cache;
mod worker;

pub use check::ModelViolation;
pub use search::{Exploration, ExplorationFinding, explore};

/// How small the world is.
#[derive(Clone, Copy, Debug)]
pub struct ModelBounds {
    /// Stages of the first plan, and layers of the model.
    pub stages: u32,
    /// Workers without a stage at the beginning.
    pub spares: u32,
    /// Steps of the run.
    pub steps: u64,
    /// Workers that may die.
    pub deaths: u8,
    /// Workers that may be declared dead, and live on.
    pub fences: u8,
    /// Leaders that may die.
    pub elections: u8,
    /// Plans that last too long though no worker died.
    pub stalls: u8,
    /// States at which the search gives up.
    pub states_max: usize,
}
