//! A run without steps, in one process: a thread for each stage, and a coordinator that puts
//! together their messages.
//!
//! ```text
//!            frames                         losses, updates
//!  stage 0 ──────────▶ stage 1 ...  ───────────────────────▶ coordinator
//!      ▲ ◀──────────────── ▲                                    │
//!      └───────────────────┴──────────────── stop ──────────────┘
//! ```
//!
//! Stages never wait for the coordinator's answer, because there is nothing to agree on. Every
//! mailbox has a limit: a stage's holds the messages that its program lets neighbours send, and the
//! coordinator's makes stages wait while it is behind.

mod async_coordinator;
mod worker;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use zbelastic_data::training_data::TrainingData;
use zbelastic_kernels::{AllocateError, Backend, DeviceFault};
use zbelastic_machine::device::code_of_fault;
use zbelastic_schedule::asynchronous::AsyncOp;
use zbelastic_trainer::asynchronous::{AsyncOutput, AsyncSetup, AsyncState, frames_max};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{HELD_OUT_MAX, InitialWeights, StageSetup};
use zbelastic_types::StageIndex;
use zbelastic_wording::{CommandFailure, FailureCode};

use super::coordinator::{RunOutcome, TrainedWeights};
use super::executor_factory::StageBackendFactory;
use super::interrupt::Interrupt;
use super::messages::{HeldOutLoss, MESSAGES_PER_WORKER};
use super::progress_event::ProgressEvent;
use async_coordinator::AsyncCoordinator;
use worker::AsyncStageWorker;

/// A message of a stage to the coordinator.
pub enum AsyncStageMessage {
    /// It has its memory and its weights.
    Ready,
    /// Outputs of its operations, and how long it has worked so far.
    Output {
        /// Stage that ran them.
        stage: StageIndex,
        /// The outputs; never a frame.
        output: AsyncOutput,
        /// Time spent in operations since the beginning.
        busy: Duration,
    },
    /// It came to the end, or was stopped.
    Finished {
        /// Stage whose program ended.
        stage: StageIndex,
        /// State of the stage's layers.
        state: AsyncState,
        /// The order that it found, if it was to find one.
        found: Option<Vec<AsyncOp>>,
    },
    /// Its memory could not be had.
    OutOfMemory {
        /// Stage that lacks it.
        stage: StageIndex,
        /// The allocation that failed, in words.
        error: String,
    },
    /// Its device gave up.
    Faulted {
        /// Stage whose device failed.
        stage: StageIndex,
        /// The device that it computed on.
        device: String,
        /// Error of the device.
        fault: DeviceFault,
    },
    /// A stage could not read a batch. Nothing that it computed of it has left the stage.
    Unreadable {
        /// Stage that was to read it.
        stage: StageIndex,
        /// What was wrong with the store.
        error: String,
    },
    /// The stage's thread panicked.
    Died {
        /// Stage of that thread.
        stage: StageIndex,
    },
}

/// A run without steps.
pub struct AsyncJob<'a> {
    /// The setup of all stages.
    pub setup: Arc<AsyncSetup>,
    /// The model in one stage, as it is evaluated at the end.
    pub whole: &'a StageSetup,
    /// Where batches come from.
    pub corpus: Arc<TrainingData>,
    /// Whether the run should end.
    pub interrupt: &'a Interrupt,
    /// The share of the time in which the busiest stage should wait.
    pub bubble: f64,
}

/// Trains to the end, or until `observe` breaks or the run is interrupted: then every stage stops
/// where it is, and the weights it has are the model.
///
/// # Errors
/// If memory could not be had, a device gave up, or a stage panicked. That the model cannot be
/// evaluated at the end is a note of the outcome.
pub fn train_on<O: StageBackendFactory>(
    factory: &O,
    job: &AsyncJob<'_>,
    observe: &mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
) -> Result<RunOutcome, CommandFailure> {
    let setup = &job.setup;
    let program = &setup.plan.program;
    let stages = || (0..program.placement.stage_count()).map(StageIndex);
    let boxes = stages().map(|stage| sync_channel(frames_max(program, stage)));
    let (mailboxes, receivers): (Vec<_>, Vec<_>) = boxes.unzip();
    let (coordinator, messages) = sync_channel(MESSAGES_PER_WORKER * mailboxes.len());
    let stop = AtomicBool::new(false);
    let conducted = thread::scope(|scope| {
        for (stage, mailbox) in stages().zip(receivers) {
            let worker = AsyncStageWorker {
                stage,
                setup: setup.clone(),
                corpus: job.corpus.clone(),
                factory,
                mailbox,
                mailboxes: mailboxes.clone(),
                coordinator: coordinator.clone(),
                stop: &stop,
            };
            scope.spawn(move || worker.run());
        }
        // A thread that waits for a frame that will not come is woken when the last sender is
        // dropped.
        drop((coordinator, mailboxes));
        AsyncCoordinator::new(setup, job.interrupt, job.bubble, &stop, observe).run(&messages)
    })?;
    let layers = conducted.state.weights();
    let is_whole = conducted.steps_done == u64::from(program.minibatch_count);
    let evaluated = if is_whole { held_out_loss(factory, job, &layers) } else { Ok(None) };
    // A trained model is not given up because it cannot be evaluated.
    let (loss, failure) = match evaluated {
        Ok(loss) => (loss, None),
        Err(failure) => (None, Some(failure)),
    };
    let held_out = loss.map(|loss| HeldOutLoss { steps_done: conducted.steps_done, loss });
    if let Some(held_out) = held_out {
        // The run is over; that the observer breaks changes nothing.
        let _ = observe(&ProgressEvent::Evaluated(held_out));
    }
    Ok(RunOutcome {
        steps_done: conducted.steps_done,
        digest: conducted.state.digest(),
        layer_digests: Vec::new(),
        weights: TrainedWeights::InMemory(layers.into_iter().map(Into::into).collect()),
        held_out,
        elapsed: conducted.elapsed,
        steps_before: 0,
        from: None,
        trace: None,
        order: conducted.order.filter(|_| is_whole).map(|order| order.to_string()),
        notes: failure.into_iter().map(|failure| failure.what).collect(),
    })
}

/// The loss of the model as a whole on held-out text, on the backend that the first stage computed
/// with.
fn held_out_loss<O: StageBackendFactory>(
    factory: &O,
    job: &AsyncJob<'_>,
    layers: &[Vec<f32>],
) -> Result<Option<f64>, CommandFailure> {
    let no_memory = |error: AllocateError| {
        CommandFailure::new(FailureCode::OutOfResource, format!("no held-out loss: {error}"))
    };
    let backend = factory.backend(StageIndex(0)).map_err(no_memory)?;
    let weights = InitialWeights::Given(Arc::new(layers.to_vec()));
    let setup = StageSetup { weights, ..job.whole.clone() };
    let whole = SerialReference::new(&setup, backend, job.corpus.clone());
    let mut whole = whole.map_err(no_memory)?;
    let loss = whole.held_out_loss(HELD_OUT_MAX);
    if let Some(fault) = job.corpus.fault() {
        let what = format!("no held-out loss: {fault}");
        return Err(CommandFailure::new(FailureCode::VerificationFailed, what));
    }
    match loss {
        Ok(loss) => checked(loss, whole.backend().fault()),
        Err(fault) => checked(None, Some(fault)),
    }
}

/// The loss, unless the device gave up: then its result is none.
fn checked(loss: Option<f64>, fault: Option<DeviceFault>) -> Result<Option<f64>, CommandFailure> {
    match fault {
        None => Ok(loss),
        Some(fault) => {
            Err(CommandFailure::new(code_of_fault(&fault), format!("no held-out loss: {fault}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_that_gave_up_computed_is_no_loss() {
        assert_eq!(checked(Some(1.5), None), Ok(Some(1.5)));
        assert_eq!(checked(None, None), Ok(None));
        let name = "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned();
        let fault = DeviceFault::Sticky { call: "cuStreamSynchronize", code: 700, name };
        let failure = checked(Some(f64::NAN), Some(fault)).expect_err("the device gave up");
        assert_eq!(failure.code, FailureCode::OutOfResource);
        for word in ["no held-out loss", "ILLEGAL_ADDRESS"] {
            assert!(failure.what.contains(word), "no {word} in: {failure}");
        }
    }
}
