//! The engine: events in, the next operation run, outputs out.

use std::sync::Arc;

use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::{AllocateError, Backend, PendingFloats};
use zbelastic_schedule::Op;
use zbelastic_types::{Attempt, LayerId, StageIndex, Step};

use super::backend_executor::BackendExecutor;
use super::evaluation::Evaluation;
use super::events::{
    EngineActivity, EngineProgress, Event, EventRefusal, Output, StageSetup, Stop,
};
use super::executor::StageExecutor;
use super::gathering::{gather_next, run_candidates};
use super::phase::EnginePhase;
use super::runner::StageRunner;
use super::validation::StageValidation;
use crate::data::BatchSource;
use crate::layer_image::PendingImage;
use crate::model::LayerState;
use crate::plan::Plan;

/// One stage of a run.
pub struct StageEngine<W: StageExecutor, S> {
    pub(super) runner: StageRunner<W, S>,
    pub(super) validation: StageValidation,
    pub(super) phase: EnginePhase,
    /// Whether other workers keep layers of this stage on standby.
    pub(super) has_standby_peers: bool,
}

impl<B: Backend, S: BatchSource> StageEngine<BackendExecutor<B>, S> {
    /// A stage at the beginning of a run.
    ///
    /// # Errors
    /// If the device's memory does not hold the plan's claim.
    pub fn new(
        setup: Arc<StageSetup>,
        stage: StageIndex,
        backend: B,
        source: S,
    ) -> Result<Self, AllocateError> {
        let executor = BackendExecutor::new(&setup, stage, backend)?;
        Ok(Self::begin_run(setup, stage, executor, source))
    }

    /// The layers of first replicas on this stage, in model order within each chunk.
    pub fn layers(&self) -> impl Iterator<Item = &LayerState<B>> {
        self.runner.executor.layers()
    }

    /// The device that this stage computes on.
    #[must_use]
    pub fn backend(&self) -> &B {
        self.runner.executor.backend()
    }
}

impl<W: StageExecutor, S: BatchSource> StageEngine<W, S> {
    /// A stage at the beginning of a run, with layers that are there.
    pub fn begin_run(setup: Arc<StageSetup>, stage: StageIndex, executor: W, source: S) -> Self {
        let generation = setup.plan.generation;
        let turn = Turn { generation, step: Step(0), attempt: Attempt(0) };
        Self::resume(setup, stage, executor, source, turn, 0)
    }

    /// A stage that goes on with `turn` after `updates` updates, with layers that are there.
    ///
    /// # Panics
    /// If the layers have another version than the turn's step.
    pub fn resume(
        setup: Arc<StageSetup>,
        stage: StageIndex,
        executor: W,
        source: S,
        turn: Turn,
        updates: u64,
    ) -> Self {
        assert_eq!(executor.version(), turn.step, "a step begins with the version of its number");
        let mut engine = Self {
            validation: StageValidation::new(turn, updates, setup.clip_norm),
            phase: first_phase(&setup, turn),
            runner: StageRunner::new(setup, stage, executor, source, turn),
            has_standby_peers: false,
        };
        let StageRunner { exchange, executor, outbox, .. } = &mut engine.runner;
        exchange.begin(turn.step, executor, outbox);
        engine
    }

    /// Ends the stage: a sealed step is carried out, everything else is dropped, and the layers are
    /// left as they are sealed.
    #[must_use]
    pub fn into_executor(mut self) -> W {
        self.abandon_unsealed();
        self.runner.executor
    }

    /// Whether a seal has come that is not carried out yet.
    #[must_use]
    pub fn has_seal_waiting(&self) -> bool {
        self.validation.seal().is_some() || self.is_committing()
    }

    /// Sets whether gradients are sent although no worker keeps a copy.
    pub fn set_sends_gradients(&mut self, has_standby_peers: bool) {
        self.has_standby_peers = has_standby_peers;
    }

    /// Whether a gate has found a seal that is not carried out yet: state and open turn do not
    /// belong to each other until it is.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        self.phase.pending().is_some()
    }

    /// Whether the gradient of the open turn is complete and untouched (rule R1).
    #[must_use]
    pub fn has_frozen(&self) -> bool {
        self.validation.is_reported() && !self.is_committing()
    }

    /// The executor that the stage computes with.
    #[must_use]
    pub fn executor(&self) -> &W {
        &self.runner.executor
    }

    /// The program that runs, and the plan it belongs to.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.runner.setup.plan
    }

    /// Handles an event from outside the stage.
    ///
    /// # Errors
    /// If it does not belong: it is dropped, and the engine stays as it was.
    pub fn handle(&mut self, event: Event) -> Result<(), EventRefusal> {
        match event {
            Event::Frame(frame) => self.runner.receive(frame)?,
            Event::Prefix(prefix) => self.validation.receive_prefix(prefix),
            Event::Seal(seal) => self.validation.receive_seal(seal)?,
            Event::Halt { after } => self.runner.halt_after(after),
            Event::Partial(partial) => self.runner.accept_partial(partial)?,
            Event::Published { layer, version } => {
                self.runner.exchange.count_published(layer, version)
            }
            Event::Outer(outer) => self.runner.exchange.receive(outer),
        }
        Ok(())
    }

    /// The next output for the engine's owner to deliver, in order, until none is left. Nothing
    /// leaves a device that gave up: its last results may be anything, and would look like
    /// a bad step.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.runner.executor.fault().is_some() {
            self.runner.outbox.clear();
        }
        self.runner.outbox.pop_front()
    }

    /// Runs the next operation, if everything it needs is there.
    pub fn run_next(&mut self) -> EngineProgress {
        let progress = self.run_phase().unwrap_or_else(EngineProgress::from);
        self.runner.executor.fault().map_or(progress, EngineProgress::Faulted)
    }

    pub(super) fn run_phase(&mut self) -> Result<EngineProgress, Stop> {
        match &self.phase {
            EnginePhase::Program(_) => self.drop_if_overruled().map_or_else(|| self.run_op(), Ok),
            EnginePhase::Settling => self.settle(),
            EnginePhase::Gathering(_) => gather_next(self),
            EnginePhase::Evaluating(_) => self.evaluate_next(),
            EnginePhase::Finished => Ok(EngineProgress::Finished),
        }
    }

    fn run_op(&mut self) -> Result<EngineProgress, Stop> {
        let program = self.phase.running();
        let cursor = program.cursor;
        let stage = self.runner.stage;
        let Some(op) = self.runner.setup.plan.program.ops(stage).get(cursor).copied() else {
            return self.end_program();
        };
        let turn = self.runner.turn;
        let losses = &mut program.losses;
        match op {
            Op::Compute(compute, pass) => self.runner.run_pass(compute, pass, losses)?,
            Op::Transfer(transfer, flow, pass) => self.runner.run_transfer(transfer, flow, pass)?,
            Op::Update(update) => self.run_update(update)?,
            Op::Reduce(reduction, chunk) if op.gathers_candidates() => {
                run_candidates(self, reduction, chunk)?;
            }
            Op::Reduce(reduction, chunk) => self.runner.run_reduction(reduction, chunk, losses)?,
            Op::Memory(memory, pass) => self.runner.run_memory(memory, pass)?,
        }
        self.runner.executor.flush();
        // A gate may have moved the engine to another phase or turn; then it goes on there.
        if let EnginePhase::Program(program) = &mut self.phase
            && program.cursor == cursor
            && self.runner.turn == turn
        {
            program.cursor += 1;
        }
        Ok(EngineProgress::Ran(EngineActivity::Op { turn, op }))
    }

    fn evaluate_next(&mut self) -> Result<EngineProgress, Stop> {
        let EnginePhase::Evaluating(evaluation) = &mut self.phase else {
            unreachable!("called while evaluating")
        };
        if let Some(pass) = evaluation.run_next(&mut self.runner)? {
            return Ok(EngineProgress::Ran(EngineActivity::Evaluation { pass }));
        }
        let (evaluated, next, after) = evaluation.finish();
        self.runner.outbox.extend(evaluated);
        self.continue_after(next, after);
        self.run_phase()
    }

    /// Whether held-out text is evaluated behind the last step, so that no step waits for it.
    #[must_use]
    pub fn evaluates_last(&self) -> bool {
        let EnginePhase::Evaluating(evaluation) = &self.phase else { return false };
        self.runner.is_last(evaluation.after())
    }

    /// Passes of this stage over held-out text that ran, and all of them, while it is evaluated.
    #[must_use]
    pub fn evaluated(&self) -> Option<(u32, u32)> {
        let EnginePhase::Evaluating(evaluation) = &self.phase else { return None };
        evaluation.progress()
    }

    /// Whether the run is over.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, EnginePhase::Finished)
    }

    /// The turn that runs.
    #[must_use]
    pub fn turn(&self) -> Turn {
        self.runner.turn
    }

    /// The turn whose seal this stage applies next.
    #[must_use]
    pub fn open_turn(&self) -> Turn {
        self.validation.open_turn()
    }

    /// Updates applied and sealed.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.validation.updates()
    }

    /// The sealed state of a layer on its way, and its gradient if one is frozen: the layer's
    /// part of messages that were sent before the layer was requested.
    pub(crate) fn pending_layer(
        &mut self,
        layer: LayerId,
    ) -> Option<(PendingImage, Option<PendingFloats>)> {
        let has_frozen = self.has_frozen();
        let executor = &mut self.runner.executor;
        let image = executor.pending_image(layer)?;
        Some((image, if has_frozen { executor.gradient(layer) } else { None }))
    }
}

/// The phase that a stage begins in. The stages of the plan before may have stopped short of the
/// evaluation at this version; so it is made, once more if they had not.
fn first_phase(setup: &StageSetup, turn: Turn) -> EnginePhase {
    match turn.step.0.checked_sub(1) {
        Some(before) if setup.evaluates_at(turn.step) => {
            EnginePhase::Evaluating(Evaluation::new(turn, Step(before)))
        }
        Some(_) | None if turn.step.0 >= setup.step_count => EnginePhase::Finished,
        Some(_) | None => EnginePhase::program(setup),
    }
}
