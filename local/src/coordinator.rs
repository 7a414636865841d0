//! The leader's half of validation with a list of mailboxes: reports in, seals out.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use zbelastic_consensus::job::RunOrigin;
use zbelastic_consensus::validation::{LeaderHalf, Ledger, Proposal, Seal, Verdict};
use zbelastic_islands::ExchangeStartError;
use zbelastic_kernels::DeviceFault;
use zbelastic_kernels::HostFloats;
use zbelastic_machine::device::code_of_fault;
use zbelastic_schedule::Window;
use zbelastic_timing::RunTiming;
use zbelastic_timing::trace::trace;
use zbelastic_trainer::digest::{StateDigest, state_digest};
use zbelastic_trainer::model::model_size;
use zbelastic_trainer::stage::{Event, StashStoreError};
use zbelastic_types::{Digest, StageIndex, Step};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::job::TrainingJob;
use super::messages::{CoordinatorMessage, HeldOutLoss, StageResult, WorkerMessage};
use super::progress_event::{ProgressEvent, Rollback, StepRecord};

/// Where the weights are that a run ended with.
pub enum TrainedWeights {
    /// Layer by layer.
    InMemory(Vec<HostFloats>),
    /// In the run folder, as a model; and layer by layer, if there was memory for them and what
    /// passes read of them.
    Written(Option<Vec<HostFloats>>),
}

/// The outcome of a run.
pub struct RunOutcome {
    /// Steps that were sealed.
    pub steps_done: u64,
    /// The weights.
    pub weights: TrainedWeights,
    /// Digest of the state after the last step.
    pub digest: StateDigest,
    /// Digests of the layers that it is a hash over, in the model's order; none of a schedule without
    /// steps.
    pub layer_digests: Vec<Digest>,
    /// The last evaluation after the last step, if there was text for it.
    pub held_out: Option<HeldOutLoss>,
    /// Duration of the steps.
    pub elapsed: Duration,
    /// Steps that an earlier command had sealed, in another time.
    pub steps_before: u64,
    /// The checkpoint of another run that it began with, if it did.
    pub from: Option<RunOrigin>,
    /// The slices of the last steps, as the text of a trace file.
    pub trace: Option<String>,
    /// The order that was found, as the text of a program, where one was to be found.
    pub order: Option<String>,
    /// Results that are missing although the run ended, and why.
    pub notes: Vec<String>,
}

/// The leader's half, for as long as a run lasts.
pub struct Coordinator<'a> {
    job: &'a TrainingJob,
    mailboxes: &'a [SyncSender<WorkerMessage>],
    observe: &'a mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
    ledger: Ledger,
    leader: LeaderHalf,
    timing: RunTiming,
    /// When the last worker was ready, and when the last step was sealed.
    began: Instant,
    sealed: Instant,
    attempts: u32,
    control: ControlFlow<()>,
    steps_done: u64,
    held_out: Option<HeldOutLoss>,
}

impl<'a> Coordinator<'a> {
    /// Before the first step.
    pub fn new(
        job: &'a TrainingJob,
        mailboxes: &'a [SyncSender<WorkerMessage>],
        observe: &'a mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
    ) -> Self {
        let ledger = Ledger::new(job.setup.plan.generation, Step(0), 0);
        let leader = LeaderHalf::new(&ledger, model_size(&job.setup.model).0, job.policy);
        let leader = leader.of_stages(mailboxes.len() as u32);
        let began = Instant::now();
        Self {
            timing: RunTiming::new(job.setup.clone()),
            job,
            mailboxes,
            observe,
            ledger,
            leader,
            began,
            sealed: began,
            attempts: 1,
            control: ControlFlow::Continue(()),
            steps_done: 0,
            held_out: None,
        }
    }

    /// Coordinates the run to its end.
    ///
    /// # Errors
    /// If memory could not be had, or a worker panicked.
    pub fn run(
        mut self,
        messages: &Receiver<CoordinatorMessage>,
    ) -> Result<RunOutcome, CommandFailure> {
        let mut results = Vec::new();
        while results.len() < self.mailboxes.len() {
            match messages.recv().expect("a worker ends with a message") {
                CoordinatorMessage::Ready => {
                    (self.began, self.sealed) = (Instant::now(), Instant::now())
                }
                CoordinatorMessage::Slices { stage, slices } => self.timing.record(stage, slices),
                CoordinatorMessage::Report(report) => {
                    let counted = self.leader.handle_report(&self.ledger, &report);
                    if let Some(proposal) = counted.expect("reports come in turn") {
                        self.seal(proposal);
                    }
                }
                CoordinatorMessage::Evaluated(evaluated) => {
                    self.held_out = Some(evaluated);
                    self.report(ProgressEvent::Evaluated(evaluated));
                }
                CoordinatorMessage::Finished(result) => results.push(result),
                CoordinatorMessage::OutOfMemory { stage, error } => {
                    return Err(out_of_memory(stage, &error.to_string()));
                }
                CoordinatorMessage::StoreFailed { stage, error } => {
                    return Err(store_failed(stage, error));
                }
                CoordinatorMessage::Unreadable { stage, error } => {
                    return Err(unreadable(stage, error, self.steps_done));
                }
                CoordinatorMessage::Faulted { stage, device, fault } => {
                    return Err(faulted(stage, &device, &fault, self.steps_done));
                }
                CoordinatorMessage::NoExchange { stage, error } => {
                    return Err(no_exchange(stage, &error));
                }
                CoordinatorMessage::Islands { stage, text } => {
                    self.report(ProgressEvent::Islands(format!("stage {stage}: {text}")));
                }
                CoordinatorMessage::Died { stage } => return Err(died(stage)),
            }
        }
        Ok(self.outcome(results))
    }

    /// Applies the proposal's seal, which one member decides alone, and sends it to every stage.
    fn seal(&mut self, Proposal { seal, went_ahead }: Proposal) {
        self.ledger.apply(&seal).expect("a proposal is about the open turn");
        // Stages are sent the seal first; reporting it may last as long as it likes.
        let should_end = self.control.is_break() || self.job.interrupt.is_requested();
        if should_end && seal.verdict.is_final() {
            self.broadcast(&Event::Halt { after: seal.turn.step });
        }
        self.broadcast(&Event::Seal(seal));
        match seal.verdict {
            Verdict::Keep | Verdict::Clip { .. } => {}
            Verdict::Skip | Verdict::Replay => {
                let Seal { turn, verdict, reason, .. } = seal;
                self.report(ProgressEvent::Rollback(Rollback { step: turn.step, verdict, reason }));
            }
        }
        if seal.verdict.is_final() {
            self.end_step(&seal, went_ahead);
        } else {
            self.attempts += 1;
        }
    }

    fn end_step(&mut self, seal: &Seal, went_ahead: bool) {
        let setup = &self.job.setup;
        let may_go_ahead = setup.plan.program.window == Some(Window::One);
        let is_redone = may_go_ahead && went_ahead && matches!(seal.verdict, Verdict::Clip { .. });
        let tokens = setup.plan.batch.tokens();
        let step = seal.turn.step;
        let now = Instant::now();
        let record = StepRecord {
            step,
            loss: seal.loss_sum() / tokens as f64,
            norm: seal.norm(),
            verdict: seal.verdict,
            lr: setup.optimizer.lr_at(step, setup.step_count),
            elapsed: now - self.sealed,
            tokens,
            bubbles: self.timing.end_step(seal.turn),
            attempts: self.attempts + u32::from(is_redone),
            generation: setup.plan.generation.0,
            stage_count: self.mailboxes.len() as u32,
        };
        (self.sealed, self.attempts) = (now, 1);
        self.steps_done = step.0 + 1;
        self.report(ProgressEvent::Step(record));
    }

    fn report(&mut self, event: ProgressEvent) {
        if (self.observe)(&event).is_break() {
            self.control = ControlFlow::Break(());
        }
    }

    fn broadcast(&self, event: &Event) {
        for (stage, mailbox) in self.mailboxes.iter().enumerate() {
            match mailbox.try_send(WorkerMessage::Event(event.clone())) {
                // A worker that panicked has reported it.
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                Err(TrySendError::Full(_)) => panic!("stage {stage} has no space for {event:?}"),
            }
        }
    }

    fn outcome(self, results: Vec<StageResult>) -> RunOutcome {
        let mut layers = Vec::new();
        let mut digests = BTreeMap::new();
        let mut twins = Vec::new();
        for result in results {
            assert_eq!(result.updates, self.ledger.updates(), "all stages applied all seals");
            layers.extend(result.layers);
            digests.extend(result.digests);
            twins.extend(result.twins);
        }
        for (layer, digest) in twins {
            assert_eq!(digests[&layer], digest, "all replicas of layer {layer} end the same");
        }
        layers.sort_by_key(|(layer, _)| *layer);
        RunOutcome {
            steps_done: self.steps_done,
            weights: TrainedWeights::InMemory(
                layers.into_iter().map(|(_, weights)| weights.into()).collect(),
            ),
            digest: state_digest(digests.values().copied(), self.ledger.updates()),
            layer_digests: digests.into_values().collect(),
            held_out: self.held_out.filter(|last| last.steps_done == self.steps_done),
            elapsed: self.sealed - self.began,
            steps_before: 0,
            from: None,
            trace: Some(trace(&self.timing, self.mailboxes.len() as u32, None)),
            order: None,
            notes: Vec::new(),
        }
    }
}

pub(super) fn out_of_memory(stage: StageIndex, error: &str) -> CommandFailure {
    let mut failure =
        CommandFailure::new(FailureCode::OutOfResource, format!("stage {stage}: {error}"));
    failure.details = vec![FailureDetail::new("the run was stopped before its first step").hint(
        "a smaller train.microbatch, memory.recompute, memory.offload, or another \
         schedule.kind",
    )];
    failure
}

fn store_failed(stage: StageIndex, error: StashStoreError) -> CommandFailure {
    let mut failure =
        CommandFailure::new(FailureCode::OutOfResource, format!("stage {stage}: {error}"));
    failure.details = vec![
        FailureDetail::new("what passes keep could not leave memory or come back")
            .hint("space on the disk of the run's folder, or memory.offload_store = \"memory\""),
    ];
    failure
}

fn no_exchange(stage: StageIndex, error: &ExchangeStartError) -> CommandFailure {
    let what = format!("stage {stage} cannot exchange weights with other islands");
    let hint = "a folder, s3://, gs:// or az://, with the credentials of its provider's tools";
    let detail = FailureDetail::new(error.to_string()).at("sync.folders").hint(hint);
    CommandFailure::usage(&what, vec![detail])
}

/// A store that was altered or removed while it was read ends a run in one process.
pub(super) fn unreadable(stage: StageIndex, error: String, steps_done: u64) -> CommandFailure {
    let what = format!("stage {stage} cannot read what it trains on");
    let mut failure = CommandFailure::new(FailureCode::VerificationFailed, what);
    let why = format!("steps sealed before: {steps_done}; none of them is affected");
    failure.details = vec![FailureDetail::new(error).why(why).hint(
        "leave stores alone while a run reads them; `zbelastic data prepare` makes one again",
    )];
    failure
}

/// A device that gave up ends a run in one process. Where there are processes, the others go on.
fn faulted(
    stage: StageIndex,
    device: &str,
    fault: &DeviceFault,
    steps_done: u64,
) -> CommandFailure {
    let what = format!("stage {stage} on {device}: {fault}");
    let mut failure = CommandFailure::new(code_of_fault(fault), what);
    failure.details = vec![
        FailureDetail::new(format!("steps sealed before: {steps_done}; none of them is affected"))
            .why("a run in one process keeps nothing beyond its end")
            .hint(
                "without --threads-only a run is kept in its folder, and the same command goes on",
            ),
    ];
    failure
}

pub(super) fn died(stage: StageIndex) -> CommandFailure {
    let what = format!("the worker of stage {stage} died");
    let mut failure = CommandFailure::new(FailureCode::Internal, what);
    let detail = FailureDetail::new("its messages are printed above");
    failure.details = vec![detail.why("this is a defect of zbelastic, not of the run")];
    failure
}
