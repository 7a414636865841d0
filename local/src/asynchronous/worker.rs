//! A stage on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_data::training_data::TrainingData;
use zbelastic_kernels::DeviceFault;
use zbelastic_trainer::asynchronous::{
    AsyncFrame, AsyncOutput, AsyncProgress, AsyncSetup, AsyncStage,
};
use zbelastic_types::StageIndex;

use super::AsyncStageMessage;
use crate::executor_factory::StageBackendFactory;

/// How long a stage that waits for a frame goes without checking whether the run should stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The worker of a stage, before it begins.
pub struct AsyncStageWorker<'a, O: StageBackendFactory> {
    pub stage: StageIndex,
    pub setup: Arc<AsyncSetup>,
    pub corpus: Arc<TrainingData>,
    /// The factory that makes its backend.
    pub factory: &'a O,
    pub mailbox: Receiver<AsyncFrame>,
    /// The senders of all stages' mailboxes, by stage.
    pub mailboxes: Vec<SyncSender<AsyncFrame>>,
    pub coordinator: SyncSender<AsyncStageMessage>,
    /// Whether the run should stop. One writer, and no order to keep with anything else.
    pub stop: &'a AtomicBool,
}

type WorkerStage<O> = AsyncStage<<O as StageBackendFactory>::Backend, Arc<TrainingData>>;

impl<O: StageBackendFactory> AsyncStageWorker<'_, O> {
    /// Trains to the end of the program, or until the coordinator stops it.
    pub fn run(self) {
        let guard = AsyncUnwindGuard { stage: self.stage, coordinator: self.coordinator.clone() };
        let made = self.factory.backend(self.stage).and_then(|backend| {
            AsyncStage::new(self.setup.clone(), self.stage, backend, self.corpus.clone())
        });
        match made {
            Ok(mut stage) => {
                self.report(AsyncStageMessage::Ready);
                self.drive(&mut stage);
                let stage_index = self.stage;
                let state = stage.state();
                let found = stage.found().map(<[_]>::to_vec);
                let fault = stage.fault();
                let unreadable = self.corpus.fault();
                // The device's memory is given back before the coordinator puts the model together.
                drop(stage);
                match (fault, unreadable) {
                    // A value that was read of it is no result.
                    (Some(fault), _) => self.report_fault(fault),
                    (None, Some(fault)) => self.report(AsyncStageMessage::Unreadable {
                        stage: stage_index,
                        error: fault.to_string(),
                    }),
                    (None, None) => self.report(AsyncStageMessage::Finished {
                        stage: stage_index,
                        state,
                        found,
                    }),
                }
            }
            Err(error) => {
                self.report(AsyncStageMessage::OutOfMemory {
                    stage: self.stage,
                    error: error.to_string(),
                });
            }
        }
        drop(guard);
    }

    /// Runs a stage until it has finished, should stop, or has no device any more.
    fn drive(&self, stage: &mut WorkerStage<O>) {
        let mut busy = Duration::ZERO;
        while !stage.is_finished() && !self.stop.load(Ordering::Relaxed) {
            self.mailbox.try_iter().for_each(|frame| stage.handle(frame));
            let began = Instant::now();
            let progress = stage.run_next();
            if self.corpus.fault().is_some() {
                return;
            }
            busy = match (&progress, stage.worked_us()) {
                (_, Some(worked_us)) => Duration::from_secs_f64(worked_us / 1e6),
                (AsyncProgress::Ran(_), None) => busy + began.elapsed(),
                (_, None) => busy,
            };
            self.deliver(stage, busy);
            match progress {
                AsyncProgress::Ran(_) | AsyncProgress::Finished => {}
                AsyncProgress::Faulted(_) => return,
                AsyncProgress::Blocked => match self.mailbox.recv_timeout(LOOK_EVERY) {
                    Ok(frame) => stage.handle(frame),
                    // Itself, a stage holds a sender of its mailbox: only the flag ends the wait.
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
                },
            }
        }
    }

    fn deliver(&self, stage: &mut WorkerStage<O>, busy: Duration) {
        while let Some(output) = stage.poll_output() {
            match output {
                AsyncOutput::Frame { to, frame } => {
                    match self.mailboxes[to.index()].try_send(frame) {
                        // One that has stopped has no use for it.
                        Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                        Err(TrySendError::Full(_)) => {
                            assert!(
                                self.stop.load(Ordering::Relaxed),
                                "stage {} sends stage {to} more than a plan allows",
                                self.stage
                            );
                        }
                    }
                }
                output @ (AsyncOutput::Loss { .. } | AsyncOutput::Update(_)) => {
                    self.report(AsyncStageMessage::Output { stage: self.stage, output, busy });
                }
            }
        }
    }

    fn report_fault(&self, fault: DeviceFault) {
        let device = self.factory.name(self.stage);
        self.report(AsyncStageMessage::Faulted { stage: self.stage, device, fault });
    }

    /// Sends `message` to the coordinator. If it has left, the stage is about to be stopped.
    fn report(&self, message: AsyncStageMessage) {
        let _ = self.coordinator.send(message);
    }
}

/// Sends [`AsyncStageMessage::Died`] to the coordinator when the thread unwinds.
struct AsyncUnwindGuard {
    stage: StageIndex,
    coordinator: SyncSender<AsyncStageMessage>,
}

impl Drop for AsyncUnwindGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.coordinator.send(AsyncStageMessage::Died { stage: self.stage });
        }
    }
}
