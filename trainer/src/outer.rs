//! Islands: runs of one model that train apart and exchange weights now and then (DiLoCo).
//!
//! An *island* is a run of its own, with its workers, its consensus group, its moments and its share
//! of the batches. Each layer belongs to a *fragment*. Once in `every` steps the weights of a
//! fragment are sent as they are sealed; `overlap` steps later each island has those of all, makes
//! one outer step of them and mixes the result into its own weights. In between islands send each
//! other nothing, and none waits for another unless a fragment needs longer than `overlap` steps.
//!
//! ```text
//!   version   0 ........ sent ....... sent + overlap ........ sent + every ...
//!   island 0  train      |─ weights ─▶        ◀ mix             |
//!   island 1  train      |─ weights ─▶        ◀ mix             |
//! ```
//!
//! The outer step is Nesterov's on the mean of what moved (Douillard et al., DiLoCo, arXiv
//! 2311.08105, algorithm 1); fragments, overlap and mixing are those of Streaming DiLoCo (Douillard et al., arXiv
//! 2501.18512, sections 2.1 to 2.3). Everything here is a function of the configuration and of
//! sealed weights, so that an island that is killed comes to the same bits.

mod config;
mod pace;
mod schedule;
mod state;

pub use config::{ISLANDS_MAX, OuterConfig, OuterConfigError, island_batches};
pub use pace::{IslandPace, IslandTimes, island_times};
pub use schedule::{OuterRound, OuterSchedule};
pub use state::{OuterState, OuterStep, OuterVerdict, add_island};

use std::sync::Arc;

use zbelastic_types::{LayerId, Step};

/// What an outer step leads to for one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterWeights {
    /// The layer.
    pub layer: LayerId,
    /// The version of the layer that they are mixed into.
    pub version: Step,
    /// The weights that all islands agree on: the floats of its trained tensors, in order.
    pub weights: Arc<[f32]>,
    /// The share of the island's own weights in the mixture; none of them if it is 0.
    pub local_share: f32,
}

/// What a holder of a layer needs of the exchange between islands.
#[derive(Clone, Debug)]
pub enum OuterRequest {
    /// Make these weights durable where other islands read them, and report it; no later version is sealed before.
    Publish {
        /// The layer.
        layer: LayerId,
        /// The sealed version that has them.
        version: Step,
        /// The floats of its trained tensors, in order.
        weights: Arc<[f32]>,
    },
    /// Yield the outer weights of a round, once there are any.
    Await {
        /// The layer.
        layer: LayerId,
        /// The round.
        round: OuterRound,
        /// Whether to make the outer step here, or to wait until the layer's owner has.
        is_owner: bool,
    },
    /// The plan ends: requests of before are not of use any more, and others may own the layers.
    Forget,
}
