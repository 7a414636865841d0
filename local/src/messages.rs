//! The messages between threads. Every mailbox has a limit.

use zbelastic_consensus::checkpoint::LayerDigest;
use zbelastic_consensus::validation::GradientReport;
use zbelastic_islands::ExchangeStartError;
use zbelastic_kernels::{AllocateError, DeviceFault};
use zbelastic_schedule::TreeExchange;
use zbelastic_timing::MeasuredSlice;
use zbelastic_trainer::plan::Plan;
use zbelastic_trainer::stage::{Event, PARTIALS_PER_CHUNK, StashStoreError};
use zbelastic_types::{LayerId, StageIndex};

/// Messages to a worker.
pub enum WorkerMessage {
    /// An event for the worker's engine.
    Event(Event),
    /// Another worker is lost: stop at once.
    Abort,
}

/// Messages to the coordinator.
pub enum CoordinatorMessage {
    /// A stage has its memory and its weights.
    Ready,
    /// Slices of a stage since it last sent any; sent before each report.
    Slices {
        /// Stage that did it.
        stage: StageIndex,
        /// Slices in the order of their times.
        slices: Vec<MeasuredSlice>,
    },
    /// A stage's report of its sums for the open turn.
    Report(GradientReport),
    /// The loss on held-out text.
    Evaluated(HeldOutLoss),
    /// A stage came to the end of the run.
    Finished(StageResult),
    /// A stage's memory could not be had.
    OutOfMemory {
        /// Stage that lacks it.
        stage: StageIndex,
        /// The allocation that failed.
        error: AllocateError,
    },
    /// A stage's second store refused the activations it was given, or did not give it back.
    StoreFailed {
        /// Stage whose store failed.
        stage: StageIndex,
        /// Error of the stash store.
        error: StashStoreError,
    },
    /// A stage could not read a batch. Nothing that it computed of it has left the stage.
    Unreadable {
        /// Stage that was to read it.
        stage: StageIndex,
        /// What was wrong with the store.
        error: String,
    },
    /// A stage's device gave up. Nothing that it computed since has left it.
    Faulted {
        /// Stage whose device failed.
        stage: StageIndex,
        /// The device that the stage computes on.
        device: String,
        /// Error of the device.
        fault: DeviceFault,
    },
    /// A stage cannot exchange weights with other islands.
    NoExchange {
        /// Stage that was to.
        stage: StageIndex,
        /// Why it cannot.
        error: ExchangeStartError,
    },
    /// What a stage waits for in other islands, or what was wrong with their folders.
    Islands {
        /// Stage that says it.
        stage: StageIndex,
        /// What it says.
        text: String,
    },
    /// A worker's thread panicked.
    Died {
        /// Stage of that worker.
        stage: StageIndex,
    },
}

/// The loss on held-out text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOutLoss {
    /// After so many steps.
    pub steps_done: u64,
    /// The mean cross-entropy, in nats a token.
    pub loss: f64,
}

/// The final state of a stage.
pub struct StageResult {
    /// Weights of its layers.
    pub layers: Vec<(LayerId, Vec<f32>)>,
    /// Digests of its layers.
    pub digests: Vec<LayerDigest>,
    /// Digests of the layers of later replicas, which another stage ends with as well.
    pub twins: Vec<LayerDigest>,
    /// Updates that the stage applied.
    pub updates: u64,
}

/// Messages that may wait for one worker. While it runs a single operation its neighbours send at
/// most the frames that an engine accepts, which is seven for each of its passes, and the parts of
/// gradients of replicas and of tied ends; sums, seals and the end of the run come to less than the number added for them.
pub fn mailbox_limit(plan: &Plan, stage: StageIndex) -> usize {
    const FRAMES_PER_PASS: usize = 7;
    const CONTROL: usize = 16;
    let chunks = plan.chunks_of(stage).count();
    let parts = (plan.batch.microbatch_count * plan.program.slice_count) as usize;
    let exchanges = TreeExchange::all_of(plan.placement()).count() + 1;
    chunks * parts * FRAMES_PER_PASS + chunks * exchanges * PARTIALS_PER_CHUNK + CONTROL
}

/// Messages that may wait for the coordinator, of each worker. Workers wait when it is behind.
pub const MESSAGES_PER_WORKER: usize = 8;
