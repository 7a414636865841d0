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
//! Workers wait for the coordinator when its box is full; it never waits for them, so nobody waits
//! in a circle.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_consensus::validation::{
    GuardPolicy, Leader, Ledger, Proposal, Reason, Seal, Verdict,
};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::digest::{StateDigest, state_digest};
use zbelastic_trainer::model::model_size;
use zbelastic_trainer::stage::{Event, StageSetup};
use zbelastic_types::{StageIndex, Step};

use super::mail::{Evaluated, MESSAGES_PER_WORKER, Mail, Message, StageResult, mailbox_limit};
use super::timing::{Bubbles, Clock, Timing};
use super::worker::Worker;
use crate::failure::{Detail, Failure, FailureCode};

/// What a cluster is to do.
pub struct Job {
    /// What all stages are told.
    pub setup: Arc<StageSetup>,
    /// Which steps are taken.
    pub policy: GuardPolicy,
    /// Where batches come from.
    pub corpus: Arc<Corpus>,
    /// Threads that compute, in each worker.
    pub threads: usize,
}

/// What a run shows on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum News {
    /// A step is sealed for good.
    Step(StepRecord),
    /// Work was dropped because something was wrong with it; clipping is not told.
    Rollback(Rollback),
    /// The loss on held-out text.
    Evaluated(Evaluated),
}

/// A sealed step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRecord {
    /// Which one.
    pub step: Step,
    /// The mean cross-entropy.
    pub loss: f64,
    /// The global gradient norm, before clipping.
    pub norm: f64,
    /// What became of it.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The learning rate.
    pub lr: f64,
    /// Since the step before was sealed.
    pub elapsed: Duration,
    /// Tokens of the step.
    pub tokens: u64,
    /// How much of it was waiting.
    pub bubbles: Bubbles,
    /// How often it was taken: once, once more for each replay, and once more if its candidate was
    /// dropped and computed again with the clip coefficient.
    pub attempts: u32,
}

/// A step whose gradient was refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollback {
    /// Which one.
    pub step: Step,
    /// Skipped, or to be replayed.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
}

/// What a run ends with.
pub struct Outcome {
    /// Steps that were sealed.
    pub steps_done: u64,
    /// Weights, layer by layer.
    pub layers: Vec<Vec<f32>>,
    /// The state.
    pub digest: StateDigest,
    /// The last evaluation after the last step, if there was text for it.
    pub held_out: Option<Evaluated>,
    /// Of the steps.
    pub elapsed: Duration,
    /// What was done when.
    pub timing: Timing,
}

/// Runs `job` to its end. `observe` is told what happens, and may end the run after the step under
/// way by breaking.
///
/// # Errors
/// If memory could not be had, or a worker panicked.
pub fn train(
    job: &Job,
    observe: &mut dyn FnMut(&News) -> ControlFlow<()>,
) -> Result<Outcome, Failure> {
    let plan = &job.setup.plan;
    let stages = || (0..plan.placement().stage_count()).map(StageIndex);
    let boxes = stages().map(|stage| sync_channel::<Mail>(mailbox_limit(plan, stage)));
    let (mailboxes, receivers): (Vec<_>, Vec<_>) = boxes.unzip();
    let (coordinator, messages) = sync_channel(MESSAGES_PER_WORKER * mailboxes.len());
    let clock = Clock::start();
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for (stage, mailbox) in stages().zip(receivers) {
            let worker = Worker {
                stage,
                setup: job.setup.clone(),
                corpus: job.corpus.clone(),
                threads: job.threads,
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
            None => Coordinator::new(job, &mailboxes, observe).conduct(&messages),
        };
        // From here on nobody waits to be heard, so that all have time for their mail.
        drop(messages);
        match outcome {
            Ok(_) => std::mem::forget(guard),
            Err(_) => drop(guard),
        }
        // A panic was told by the worker itself.
        handles.into_iter().flatten().for_each(|handle| drop(handle.join()));
        outcome
    })
}

/// Tells all workers to stop, unless it is forgotten: on an error, and when the coordinator panics.
/// A worker that is gone needs no telling.
struct AbortGuard<'a> {
    mailboxes: &'a [SyncSender<Mail>],
}

impl Drop for AbortGuard<'_> {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| drop(mailbox.send(Mail::Abort)));
    }
}

fn cannot_start(error: &std::io::Error) -> Failure {
    let mut failure = Failure::new(FailureCode::OutOfResource, "cannot start a worker's thread");
    failure.details = vec![Detail::new(error.to_string()).hint("fewer --workers")];
    failure
}

/// The leader's half, for as long as a run lasts.
struct Coordinator<'a> {
    job: &'a Job,
    mailboxes: &'a [SyncSender<Mail>],
    observe: &'a mut dyn FnMut(&News) -> ControlFlow<()>,
    ledger: Ledger,
    leader: Leader,
    timing: Timing,
    /// When the last worker was ready, and when the last step was sealed.
    began: Instant,
    sealed: Instant,
    attempts: u32,
    course: ControlFlow<()>,
    steps_done: u64,
    held_out: Option<Evaluated>,
}

impl<'a> Coordinator<'a> {
    fn new(
        job: &'a Job,
        mailboxes: &'a [SyncSender<Mail>],
        observe: &'a mut dyn FnMut(&News) -> ControlFlow<()>,
    ) -> Self {
        let ledger = Ledger::new(job.setup.plan.generation, Step(0), 0);
        let leader = Leader::new(&ledger, model_size(&job.setup.model).0, job.policy);
        let began = Instant::now();
        Self {
            timing: Timing::new(job.setup.clone()),
            job,
            mailboxes,
            observe,
            ledger,
            leader,
            began,
            sealed: began,
            attempts: 1,
            course: ControlFlow::Continue(()),
            steps_done: 0,
            held_out: None,
        }
    }

    fn conduct(mut self, messages: &Receiver<Message>) -> Result<Outcome, Failure> {
        let mut results = Vec::new();
        while results.len() < self.mailboxes.len() {
            match messages.recv().expect("a worker ends with a message") {
                Message::Ready => (self.began, self.sealed) = (Instant::now(), Instant::now()),
                Message::Slices { stage, slices } => self.timing.record(stage, slices),
                Message::Report(report) => {
                    let counted = self.leader.handle_report(&mut self.ledger, &report);
                    if let Some(proposal) = counted.expect("reports come in turn") {
                        self.seal(proposal);
                    }
                }
                Message::Evaluated(evaluated) => {
                    self.held_out = Some(evaluated);
                    self.tell(News::Evaluated(evaluated));
                }
                Message::Finished(result) => results.push(result),
                Message::OutOfMemory { stage, error } => {
                    return Err(out_of_memory(stage, &error.to_string()));
                }
                Message::Died { stage } => return Err(died(stage)),
            }
        }
        Ok(self.outcome(results))
    }

    /// Agrees on a proposal, which with one member takes no time, and tells everybody.
    fn seal(&mut self, Proposal { seal, went_ahead }: Proposal) {
        self.ledger.apply(&seal).expect("a proposal is about the open turn");
        if seal.verdict.is_final() {
            self.end_step(&seal, went_ahead);
        } else {
            self.attempts += 1;
        }
        match seal.verdict {
            Verdict::Keep | Verdict::Clip { .. } => {}
            Verdict::Skip | Verdict::Replay => {
                let Seal { turn, verdict, reason, .. } = seal;
                self.tell(News::Rollback(Rollback { step: turn.step, verdict, reason }));
            }
        }
        if self.course.is_break() && seal.verdict.is_final() {
            self.broadcast(&Event::Halt { after: seal.turn.step });
        }
        self.broadcast(&Event::Seal(seal));
    }

    fn end_step(&mut self, seal: &Seal, went_ahead: bool) {
        let setup = &self.job.setup;
        let is_redone = went_ahead && matches!(seal.verdict, Verdict::Clip { .. });
        let tokens = setup.plan.batch.tokens();
        let step = seal.turn.step;
        let now = Instant::now();
        let record = StepRecord {
            step,
            loss: seal.loss_sum() / tokens as f64,
            norm: seal.norm(),
            verdict: seal.verdict,
            reason: seal.reason,
            lr: setup.optimizer.lr_at(step, setup.step_count),
            elapsed: now - self.sealed,
            tokens,
            bubbles: self.timing.end_step(seal.turn),
            attempts: self.attempts + u32::from(is_redone),
        };
        (self.sealed, self.attempts) = (now, 1);
        self.steps_done = step.0 + 1;
        self.tell(News::Step(record));
    }

    fn tell(&mut self, news: News) {
        if (self.observe)(&news).is_break() {
            self.course = ControlFlow::Break(());
        }
    }

    fn broadcast(&self, event: &Event) {
        for (stage, mailbox) in self.mailboxes.iter().enumerate() {
            match mailbox.try_send(Mail::Event(event.clone())) {
                // One that panicked has told so.
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                Err(TrySendError::Full(_)) => panic!("stage {stage} has no room for {event:?}"),
            }
        }
    }

    fn outcome(self, results: Vec<StageResult>) -> Outcome {
        let mut layers = Vec::new();
        let mut tensors = Vec::new();
        for result in results {
            assert_eq!(result.updates, self.ledger.updates(), "all stages applied all seals");
            layers.extend(result.layers);
            tensors.extend(result.digests);
        }
        layers.sort_by_key(|(layer, _)| *layer);
        Outcome {
            steps_done: self.steps_done,
            layers: layers.into_iter().map(|(_, weights)| weights).collect(),
            digest: state_digest(tensors, self.ledger.updates()),
            held_out: self.held_out.filter(|last| last.steps_done == self.steps_done),
            elapsed: self.sealed - self.began,
            timing: self.timing,
        }
    }
}

fn out_of_memory(stage: StageIndex, error: &str) -> Failure {
    let mut failure = Failure::new(FailureCode::OutOfResource, format!("stage {stage}: {error}"));
    failure.details = vec![
        Detail::new("the run was stopped before its first step")
            .hint("a smaller train.microbatch, a smaller model, or another schedule.kind"),
    ];
    failure
}

fn died(stage: StageIndex) -> Failure {
    let what = format!("the worker of stage {stage} died");
    let mut failure = Failure::new(FailureCode::Internal, what);
    let detail = Detail::new("what it said stands above");
    failure.details = vec![detail.why("this is a defect of zbelastic, not of the run")];
    failure
}
