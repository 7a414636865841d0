//! What threads send each other. Every box has a limit.

use zbelastic_consensus::checkpoint::LayerDigest;
use zbelastic_consensus::validation::Report;
use zbelastic_kernels::{AllocateError, DeviceFault};
use zbelastic_trainer::plan::Plan;
use zbelastic_trainer::stage::{Event, PARTIALS_PER_CHUNK, StoreError};
use zbelastic_types::{LayerId, StageIndex};

use super::timing::Slice;

/// To a worker.
pub enum Mail {
    /// Something its engine is told.
    Event(Event),
    /// Another worker is lost: stop at once.
    Abort,
}

/// To the coordinator.
pub enum Message {
    /// A stage has its memory and its weights.
    Ready,
    /// What a stage did since it last said so; sent before each report.
    Slices {
        /// The stage.
        stage: StageIndex,
        /// In order.
        slices: Vec<Slice>,
    },
    /// A stage's sums.
    Report(Report),
    /// The loss on held-out text.
    Evaluated(Evaluated),
    /// A stage came to the end of the run.
    Finished(StageResult),
    /// A stage's memory could not be had.
    OutOfMemory {
        /// The stage.
        stage: StageIndex,
        /// What was asked for.
        error: AllocateError,
    },
    /// A stage's second store refused what it was given, or did not give it back.
    StoreFailed {
        /// The stage.
        stage: StageIndex,
        /// Why.
        error: StoreError,
    },
    /// A stage's device gave up. Nothing that it computed since has left it.
    Faulted {
        /// The stage.
        stage: StageIndex,
        /// What the stage computes on.
        device: String,
        /// Why.
        fault: DeviceFault,
    },
    /// A worker's thread panicked.
    Died {
        /// Its stage.
        stage: StageIndex,
    },
}

/// The loss on held-out text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluated {
    /// After so many steps.
    pub steps_done: u64,
    /// The mean cross-entropy.
    pub loss: f64,
}

/// What a stage ends with.
pub struct StageResult {
    /// Weights of its layers.
    pub layers: Vec<(LayerId, Vec<f32>)>,
    /// Digests of its layers.
    pub digests: Vec<LayerDigest>,
    /// Digests of the layers of second replicas, which another stage ends with as well.
    pub twins: Vec<LayerDigest>,
    /// Updates it applied.
    pub updates: u64,
}

/// Mail that may wait for one worker. While it runs a single operation its neighbours send at most
/// the frames that an engine takes in, which is seven for each of its passes, and the gradients of
/// twins; sums, seals and the end of the run come to less than what is added for them.
pub fn mailbox_limit(plan: &Plan, stage: StageIndex) -> usize {
    const FRAMES_PER_PASS: usize = 7;
    const CONTROL: usize = 16;
    let chunks = plan.chunks_of(stage).count();
    let parts = (plan.batch.microbatch_count * plan.program.slice_count) as usize;
    chunks * parts * FRAMES_PER_PASS + chunks * PARTIALS_PER_CHUNK + CONTROL
}

/// Messages that may wait for the coordinator, of each worker. Workers wait when it is behind.
pub const MESSAGES_PER_WORKER: usize = 8;
