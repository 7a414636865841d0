//! A whole cluster in one process: a thread for each stage, and the coordinator, which is the
//! leader's half of validation with a list of mailboxes.
//!
//! ```text
//!            frames, prefixes                    reports, slices
//!  worker 0 ──────────────────▶ worker 1 ...  ──────────────────▶ coordinator
//!      ▲ ◀──────────────────────    ▲                                  │
//!      └────────────────────────────┴──────────────── seals, halt ─────┘
//! ```
//!
//! Workers wait for the coordinator when its channel is full; it never waits for them, so there is
//! no wait in a circle.

use std::ops::ControlFlow;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use zbelastic_kernels::Precision;
use zbelastic_timing::RunClock;
use zbelastic_types::StageIndex;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::coordinator::{Coordinator, RunOutcome};
use super::executor_factory::{CpuFactory, ExecutorFactory};
use super::job::TrainingJob;
use super::messages::{MESSAGES_PER_WORKER, WorkerMessage, mailbox_limit};
use super::progress_event::ProgressEvent;
use super::worker::StageWorker;

/// Runs `job` to its end on this machine's CPU, in floats. `observe` is called with each event, and
/// may end the run after the step under way by breaking.
///
/// # Errors
/// If memory could not be had, or a worker panicked.
pub fn train(
    job: &TrainingJob,
    observe: &mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
) -> Result<RunOutcome, CommandFailure> {
    train_on(
        &CpuFactory { threads: job.threads, precision: Precision::F32, scratch: None },
        job,
        observe,
    )
}

/// Runs `job` to its end with the executor that `factory` makes for each stage.
///
/// # Errors
/// As [`train`].
pub fn train_on<O: ExecutorFactory>(
    factory: &O,
    job: &TrainingJob,
    observe: &mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
) -> Result<RunOutcome, CommandFailure> {
    let plan = &job.setup.plan;
    let stages = || (0..plan.placement().stage_count()).map(StageIndex);
    let boxes = stages().map(|stage| sync_channel::<WorkerMessage>(mailbox_limit(plan, stage)));
    let (mailboxes, receivers): (Vec<_>, Vec<_>) = boxes.unzip();
    let (coordinator, messages) = sync_channel(MESSAGES_PER_WORKER * mailboxes.len());
    let clock = RunClock::start();
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for (stage, mailbox) in stages().zip(receivers) {
            let worker = StageWorker {
                stage,
                setup: job.setup.clone(),
                corpus: job.corpus.clone(),
                islands: job.islands.as_ref(),
                factory,
                clock,
                mailbox,
                mailboxes: mailboxes.clone(),
                coordinator: coordinator.clone(),
            };
            let builder = thread::Builder::new().name(format!("stage {stage}"));
            handles.push(builder.spawn_scoped(scope, move || worker.run()));
        }
        drop(coordinator);
        let guard = AbortGuard { mailboxes: &mailboxes };
        // Behind the guard, so that it is gone before the guard is.
        let messages = messages;
        let failed = handles.iter().filter_map(|handle| handle.as_ref().err()).next();
        let outcome = match failed {
            Some(error) => Err(cannot_start(error)),
            None => Coordinator::new(job, &mailboxes, observe).run(&messages),
        };
        // From here on no worker blocks on a send to the coordinator, so that all read their
        // mailboxes.
        drop(messages);
        match outcome {
            Ok(_) => std::mem::forget(guard),
            Err(_) => drop(guard),
        }
        // A panic was reported by the worker itself.
        handles.into_iter().flatten().for_each(|handle| drop(handle.join()));
        outcome
    })
}

/// Sends every worker [`WorkerMessage::Abort`] when dropped, unless it is forgotten: on an error,
/// and when the coordinator panics. A worker that is gone needs none.
struct AbortGuard<'a> {
    mailboxes: &'a [SyncSender<WorkerMessage>],
}

impl Drop for AbortGuard<'_> {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| drop(mailbox.send(WorkerMessage::Abort)));
    }
}

fn cannot_start(error: &std::io::Error) -> CommandFailure {
    let mut failure =
        CommandFailure::new(FailureCode::OutOfResource, "cannot start a worker's thread");
    failure.details = vec![FailureDetail::new(error.to_string()).hint("fewer --workers")];
    failure
}
