//! Puts together the messages of stages: a record for every minibatch, as for a step.
//!
//! No stage waits for these records. A minibatch is reported when its last loss is known and
//! every chunk has made the update that its last microbatch is part of.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use zbelastic_consensus::validation::Verdict;
use zbelastic_kernels::DeviceFault;
use zbelastic_machine::device::code_of_fault;
use zbelastic_schedule::asynchronous::{AsyncKind, AsyncOp, AsyncProgram};
use zbelastic_timing::BubbleShares;
use zbelastic_trainer::asynchronous::{AsyncOutput, AsyncSetup, AsyncState, AsyncUpdate};
use zbelastic_types::{MicrobatchIndex, StageIndex, Step};
use zbelastic_wording::{CommandFailure, FailureDetail};

use super::AsyncStageMessage;
use crate::coordinator::{died, out_of_memory, unreadable};
use crate::interrupt::Interrupt;
use crate::progress_event::{ProgressEvent, StepRecord};

/// The outcome of a run.
pub struct AsyncTrainingOutcome {
    pub state: AsyncState,
    /// The order that the stages found, if they were to find one.
    pub order: Option<AsyncProgram>,
    /// Minibatches that were reported.
    pub steps_done: u64,
    pub elapsed: Duration,
}

pub struct AsyncCoordinator<'a> {
    setup: &'a AsyncSetup,
    interrupt: &'a Interrupt,
    bubble_planned: f64,
    stop: &'a AtomicBool,
    observe: &'a mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
    /// Of minibatches that are not reported yet: sum and count of losses.
    losses: BTreeMap<u32, (f64, u32)>,
    /// Of every stage and pipeline: the updates since the last that was reported, by version.
    updates: BTreeMap<(StageIndex, u32), Vec<AsyncUpdate>>,
    busy: BTreeMap<StageIndex, Duration>,
    busy_reported: BTreeMap<StageIndex, Duration>,
    began: Instant,
    reported_at: Instant,
    steps_done: u32,
}

impl<'a> AsyncCoordinator<'a> {
    pub fn new(
        setup: &'a AsyncSetup,
        interrupt: &'a Interrupt,
        bubble_planned: f64,
        stop: &'a AtomicBool,
        observe: &'a mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
    ) -> Self {
        let now = Instant::now();
        Self {
            setup,
            interrupt,
            bubble_planned,
            stop,
            observe,
            losses: BTreeMap::new(),
            updates: BTreeMap::new(),
            busy: BTreeMap::new(),
            busy_reported: BTreeMap::new(),
            began: now,
            reported_at: now,
            steps_done: 0,
        }
    }

    /// Receives until every stage has finished. After the first failure stages are stopped.
    ///
    /// # Errors
    /// With the first failure.
    pub fn run(
        mut self,
        messages: &Receiver<AsyncStageMessage>,
    ) -> Result<AsyncTrainingOutcome, CommandFailure> {
        let mut state = AsyncState::default();
        let mut ops_by_stage: BTreeMap<StageIndex, Vec<AsyncOp>> = BTreeMap::new();
        let mut failure = None;
        // Ends when the last stage has left.
        for message in messages {
            match message {
                AsyncStageMessage::Ready => {
                    (self.began, self.reported_at) = (Instant::now(), Instant::now())
                }
                AsyncStageMessage::Output { stage, output, busy } => {
                    self.busy.insert(stage, busy);
                    self.count(stage, output);
                    while failure.is_none() && self.report_next() {}
                }
                AsyncStageMessage::Finished { stage, state: of_stage, found } => {
                    state.extend(of_stage);
                    ops_by_stage.extend(found.map(|ops| (stage, ops)));
                }
                AsyncStageMessage::OutOfMemory { stage, error } => {
                    failure = failure.or(Some(out_of_memory(stage, &error)));
                }
                AsyncStageMessage::Unreadable { stage, error } => {
                    let steps_done = self.steps_done.into();
                    failure = failure.or_else(|| Some(unreadable(stage, error, steps_done)));
                }
                AsyncStageMessage::Faulted { stage, device, fault } => {
                    failure = failure.or_else(|| Some(self.faulted(stage, &device, &fault)));
                }
                AsyncStageMessage::Died { stage } => failure = failure.or(Some(died(stage))),
            }
            if failure.is_some() || self.interrupt.is_requested() {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        let steps_done = self.steps_done.into();
        let elapsed = self.reported_at - self.began;
        match failure {
            Some(failure) => Err(failure),
            None => {
                let program = &self.setup.plan.program;
                let is_found = ops_by_stage.len() == program.stages.len();
                let stages = ops_by_stage.into_values().collect();
                let order = is_found.then(|| AsyncProgram { stages, ..program.clone() });
                Ok(AsyncTrainingOutcome { state, order, steps_done, elapsed })
            }
        }
    }

    /// A device that gave up ends a run without steps.
    fn faulted(&self, stage: StageIndex, device: &str, fault: &DeviceFault) -> CommandFailure {
        let what = format!("stage {stage} on {device}: {fault}");
        let mut failure = CommandFailure::new(code_of_fault(fault), what);
        let lost = FailureDetail::new(format!("minibatches trained before: {}", self.steps_done))
            .why("a run without steps keeps nothing before its end")
            .hint("the same command, or a schedule with steps such as zb-h1, which goes on");
        failure.details = vec![lost];
        failure
    }

    fn count(&mut self, stage: StageIndex, output: AsyncOutput) {
        match output {
            AsyncOutput::Frame { .. } => unreachable!("frames go to their stages"),
            AsyncOutput::Loss { microbatch, loss_sum } => {
                let minibatch = self.setup.plan.program.minibatch_of(microbatch);
                let (sum, count) = self.losses.entry(minibatch).or_default();
                (*sum, *count) = (*sum + loss_sum, *count + 1);
            }
            AsyncOutput::Update(updated) => {
                let line = (stage, updated.version.replica);
                self.updates.entry(line).or_default().push(updated);
            }
        }
    }

    /// Reports the next minibatch if it is complete.
    fn report_next(&mut self) -> bool {
        let program = &self.setup.plan.program;
        let minibatch = self.steps_done;
        let Some((loss_sum, count)) = self.losses.get(&minibatch).copied() else { return false };
        if minibatch >= program.minibatch_count || count < program.microbatch_count {
            return false;
        }
        let Some(updates) = self.updates_of(minibatch) else { return false };
        let record = self.record(minibatch, loss_sum, &updates);
        self.losses.remove(&minibatch);
        self.steps_done += 1;
        if (self.observe)(&ProgressEvent::Step(record)).is_break() {
            self.stop.store(true, Ordering::Relaxed);
        }
        true
    }

    /// The update of every chunk that the minibatch's last microbatch is part of; all before it is
    /// forgotten. Where the order is found while it runs it is the newest there is.
    fn updates_of(&mut self, minibatch: u32) -> Option<Vec<AsyncUpdate>> {
        let program = &self.setup.plan.program;
        let last = (minibatch + 1) * program.microbatch_count - 1;
        let replica = program.replica_of(MicrobatchIndex(last));
        let round = minibatch / program.replica_count + 1;
        let version = round * program.microbatch_count / program.update_every;
        let chunks_per_stage = program.kind.chunks_per_stage() as usize;
        let is_found = program.kind == AsyncKind::AmpNet;
        let stages = (0..program.placement.stage_count()).map(StageIndex);
        let mut all = Vec::new();
        for stage in stages.clone() {
            let updates = self.updates.get(&(stage, replica)).map_or(&[][..], Vec::as_slice);
            if is_found {
                all.extend(updates.last());
                continue;
            }
            let of_version = updates.iter().filter(|updated| updated.version.base == version);
            let found: Vec<AsyncUpdate> = of_version.copied().collect();
            if found.len() < chunks_per_stage {
                return None;
            }
            all.extend(found);
        }
        for stage in stages {
            if let Some(updates) = self.updates.get_mut(&(stage, replica)) {
                let newest = updates.last().copied();
                updates.retain(|updated| {
                    !is_found && updated.version.base > version
                        || is_found && Some(*updated) == newest
                });
            }
        }
        Some(all)
    }

    fn record(&mut self, minibatch: u32, loss_sum: f64, updates: &[AsyncUpdate]) -> StepRecord {
        let tokens = self.setup.plan.batch.tokens();
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.reported_at, now);
        let square_sum: f64 = updates.iter().map(|updated| updated.norm * updated.norm).sum();
        let lr = updates.iter().map(|updated| updated.lr).fold(0.0, f64::max);
        StepRecord {
            step: Step(minibatch.into()),
            loss: loss_sum / tokens as f64,
            norm: square_sum.sqrt(),
            verdict: verdict(updates),
            lr,
            elapsed,
            tokens,
            bubbles: BubbleShares {
                measured: self.measured_bubble(elapsed),
                planned: self.bubble_planned,
                causes: None,
            },
            attempts: 1,
            generation: 0,
            stage_count: self.setup.plan.program.placement.stage_count(),
        }
    }

    /// The share of the time since the last line in which the busiest stage waited.
    fn measured_bubble(&mut self, elapsed: Duration) -> f64 {
        let before = |stage| self.busy_reported.get(stage).copied().unwrap_or_default();
        let worked = self.busy.iter().map(|(stage, busy)| *busy - before(stage));
        let most = worked.max().unwrap_or_default().as_secs_f64();
        self.busy_reported = self.busy.clone();
        (1.0 - most / elapsed.as_secs_f64().max(1e-9)).max(0.0)
    }
}

/// The verdict on a minibatch: left out if a chunk left it out, clipped as hard as it was anywhere.
fn verdict(updates: &[AsyncUpdate]) -> Verdict {
    let coefficients: Option<Vec<f32>> =
        updates.iter().map(|updated| updated.coefficient).collect();
    match coefficients.map(|all| all.into_iter().fold(1.0, f32::min)) {
        None => Verdict::Skip,
        Some(coefficient) if coefficient < 1.0 => Verdict::Clip { coefficient },
        Some(_) => Verdict::Keep,
    }
}
