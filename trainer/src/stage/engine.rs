//! The engine: events in, the next operation run, outputs out.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::validation::{
    GradientReport, LayerFingerprint, Prefix, Seal, SealApplication, SealRefusal, StageHalf, Turn,
};
use zbelastic_kernels::{AllocateError, Backend, DeviceFault, Pending, TensorHandle};
use zbelastic_schedule::{Flow, Op, Pass, Window};
use zbelastic_types::{Attempt, ChunkIndex, SliceIndex, StageIndex, Step};

use super::backend_executor::BackendExecutor;
use super::evaluation::Evaluation;
use super::executor::StageExecutor;
use super::frame::{Frame, PassMode};
use super::inbox::{BoundaryFrameRefusal, FrameInbox};
use super::initial_weights::InitialWeights;
use super::injection::Injection;
use super::partial::{PartialGradient, PartialInbox, PartialRefusal};
use super::stash_store::StashStoreError;
use crate::data::BatchSource;
use crate::elastic::LayerGradient;
use crate::model::{LayerState, ModelConfig};
use crate::optimizer::OptimizerConfig;
use crate::plan::Plan;

/// The configuration of a run, the same for all its stages.
#[derive(Clone, Debug)]
pub struct StageSetup {
    /// Shape of the model.
    pub model: ModelConfig,
    /// The plan: which stage has which layers, and the program that each runs.
    pub plan: Plan,
    /// Settings of the optimizer.
    pub optimizer: OptimizerConfig,
    /// The largest gradient norm that is applied as it is.
    pub clip_norm: Option<f64>,
    /// Steps of the run.
    pub step_count: u64,
    /// Evaluate after every so many steps; 0 only after the last.
    pub evaluate_every: u64,
    /// Weights of the layers before the first step.
    pub weights: InitialWeights,
    /// Gradients corrupted on purpose.
    pub injections: Vec<Injection>,
    /// Whether gradients are sent to the workers that keep a copy.
    pub copies_wanted: bool,
    /// A report carries the fingerprints of the state every so many steps; 0 never.
    pub attest_every: u64,
}

impl StageSetup {
    /// Whether the fingerprints of the state that `step` begins with are reported.
    pub(super) fn attests(&self, step: Step) -> bool {
        self.attest_every > 0 && step.0.is_multiple_of(self.attest_every)
    }
}

/// An event from outside the stage.
#[derive(Clone, Debug)]
pub enum Event {
    /// A boundary tensor arrived.
    Frame(Frame),
    /// The sums of the stages before this one.
    Prefix(Prefix),
    /// A verdict that was agreed on.
    Seal(Seal),
    /// The run ends after this step; sent before that step's seal.
    Halt {
        /// The last step of the run.
        after: Step,
    },
    /// The other replica's gradient of a chunk.
    Partial(PartialGradient),
}

/// A message that the engine's owner delivers.
#[derive(Clone, Debug)]
pub enum Output {
    /// A boundary tensor for another stage.
    Frame {
        /// Stage that the tensor is sent to.
        to: StageIndex,
        /// The tensor, with the turn and the pass that reads it.
        frame: Frame,
    },
    /// The sums up to this stage, for the next.
    Prefix {
        /// Stage that the sums are sent to.
        to: StageIndex,
        /// Sum of squares of the gradients of this stage and those before it.
        prefix: Prefix,
    },
    /// This stage's gradient, for the workers that keep its copy or its layers on standby.
    Gradients {
        /// Turn that the gradients were computed in.
        turn: Turn,
        /// One for each layer.
        gradients: Vec<LayerGradient>,
    },
    /// This stage's sums, for the leader.
    Report {
        /// The turn, and the sum of squares of each tensor's gradient.
        report: GradientReport,
        /// Fingerprints of the state that the step began with, if this step attests.
        state: Vec<LayerFingerprint>,
    },
    /// A verdict was carried out: the state is this version, until the next is (rule R5).
    Sealed {
        /// Version of the state: the steps sealed so far.
        version: Step,
    },
    /// The loss on held-out text, from the stage that holds the head. Nothing sealed later can
    /// change it (rule R5); after a change of plans it may be reported twice.
    Evaluated {
        /// Steps done before the evaluation.
        steps_done: u64,
        /// Sum of the cross-entropies of all held-out tokens, in nats.
        loss_sum: f64,
        /// Number of held-out tokens that the sum is over.
        token_count: u64,
    },
    /// A chunk's gradient over the microbatches of its replica, for the stage of its twin.
    Partial {
        /// Stage that the gradient is sent to.
        to: StageIndex,
        /// The gradient, with its turn and the chunk that adds it.
        partial: PartialGradient,
    },
}

/// Why an event was dropped. The engine stays as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EventRefusal {
    /// A boundary tensor was refused.
    #[error(transparent)]
    Frame(#[from] BoundaryFrameRefusal),
    /// A seal was refused.
    #[error(transparent)]
    Seal(#[from] SealRefusal),
    /// A partial gradient of the other replica was refused.
    #[error(transparent)]
    Partial(#[from] PartialRefusal),
}

/// The outcome of [`StageEngine::run_next`].
#[derive(Clone, Debug, PartialEq)]
pub enum EngineProgress {
    /// An operation, an evaluation pass or a verdict was carried out.
    Ran(EngineActivity),
    /// Nothing can be run until this arrives.
    Blocked(WaitReason),
    /// The second store refused what was next. Nothing was run; the next call tries it again.
    Failed(StashStoreError),
    /// The device gave up. Nothing leaves this stage any more, and only a new process may get the
    /// device back.
    Faulted(DeviceFault),
    /// The run is over.
    Finished,
}

/// Why what was next was not run.
#[derive(Debug)]
pub(super) enum Stop {
    Blocked(WaitReason),
    Failed(StashStoreError),
    Faulted(DeviceFault),
}

impl From<WaitReason> for Stop {
    fn from(reason: WaitReason) -> Self {
        Self::Blocked(reason)
    }
}

impl From<StashStoreError> for Stop {
    fn from(error: StashStoreError) -> Self {
        Self::Failed(error)
    }
}

impl From<DeviceFault> for Stop {
    fn from(fault: DeviceFault) -> Self {
        Self::Faulted(fault)
    }
}

impl From<Stop> for EngineProgress {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Blocked(reason) => Self::Blocked(reason),
            Stop::Failed(error) => Self::Failed(error),
            Stop::Faulted(fault) => Self::Faulted(fault),
        }
    }
}

/// The operation, evaluation pass or verdict that the engine carried out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum EngineActivity {
    /// An operation of the program.
    Op {
        /// The turn it belongs to.
        turn: Turn,
        /// The operation as it stands in the program.
        op: Op,
    },
    /// F on held-out text.
    Evaluation {
        /// Chunk, microbatch and slice that it ran over.
        pass: Pass,
    },
    /// A verdict that came after the end of the program.
    Settled {
        /// The turn it was about.
        turn: Turn,
    },
}

/// What the engine waits for before it can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A boundary tensor that has not arrived.
    Frame {
        /// Whether the tensor is an activation or a gradient.
        flow: Flow,
        /// The pass that reads it.
        pass: Pass,
    },
    /// The sums of the stages before this one.
    Prefix,
    /// The verdict on this turn.
    Seal(Turn),
    /// The other replica's gradient.
    Partial {
        /// The chunk that adds it.
        chunk: ChunkIndex,
    },
}

#[derive(Debug)]
pub(super) enum EnginePhase {
    /// In its program, at this operation.
    Program { cursor: usize },
    /// Behind it, waiting for the verdict before anything else may happen.
    Settling,
    /// Evaluating on sealed weights.
    Evaluating(Evaluation),
    /// The run is over.
    Finished,
}

/// One stage of a run.
pub struct StageEngine<W: StageExecutor, S> {
    pub(super) setup: Arc<StageSetup>,
    pub(super) stage: StageIndex,
    pub(super) source: S,
    pub(super) executor: W,
    pub(super) half: StageHalf,
    /// The turn whose program runs.
    pub(super) turn: Turn,
    /// The step that was replayed last, and how often.
    pub(super) replayed: (Step, u32),
    /// Whether this stage's last gate was: the next one probably is.
    pub(super) was_gate_open: bool,
    pub(super) phase: EnginePhase,
    pub(super) inbox: FrameInbox,
    pub(super) partials: PartialInbox,
    pub(super) outbox: VecDeque<Output>,
    /// The last report, from which the prefix is computed.
    pub(super) report: Option<GradientReport>,
    pub(super) prefix: Option<Prefix>,
    pub(super) seal: Option<Seal>,
    /// A seal applied by a gate, to be carried out by STEP and COMMIT.
    pub(super) pending: Option<PendingSeal>,
    /// Cross-entropies of the step's microbatches, slice by slice.
    pub(super) losses: Vec<Option<Pending<f64>>>,
    pub(super) halt_after: Option<Step>,
    /// Whether other workers keep layers of this stage on standby.
    pub(super) has_standby_peers: bool,
}

/// What a gate found and the operations behind it carry out.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingSeal {
    pub(super) application: SealApplication,
    pub(super) seal: Seal,
}

/// Frames that may wait for one pass: an activation and a gradient, of this turn, of the next, and
/// of a neighbour's that is further for having dropped one; and one on held-out text.
const FRAMES_PER_PASS: usize = 7;

impl<B: Backend, S: BatchSource> StageEngine<BackendExecutor<B>, S> {
    /// A stage at the beginning of a run.
    ///
    /// # Errors
    /// If the device's memory does not hold what the plan claims.
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
        self.executor.layers()
    }

    /// The device that this stage computes on.
    #[must_use]
    pub fn backend(&self) -> &B {
        self.executor.backend()
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
        let chunk_count = executor.chunk_indices().len();
        let parts = (setup.plan.batch.microbatch_count * setup.plan.program.slice_count) as usize;
        let passes = chunk_count * parts;
        let slices = (0..setup.plan.program.slice_count).map(SliceIndex);
        let frame_lens = slices.map(|slice| executor.frame_len(slice)).collect();
        let inbox = FrameInbox::new(frame_lens, passes * FRAMES_PER_PASS);
        let phase = first_phase(&setup, turn);
        Self {
            half: StageHalf::new(turn, updates, setup.clip_norm),
            losses: vec![None; parts],
            stage,
            source,
            executor,
            turn,
            replayed: (turn.step, 0),
            was_gate_open: true,
            phase,
            inbox,
            partials: PartialInbox::default(),
            outbox: VecDeque::new(),
            report: None,
            prefix: None,
            seal: None,
            pending: None,
            halt_after: None,
            has_standby_peers: false,
            setup,
        }
    }

    /// Ends the stage: what is sealed is carried out, everything else is dropped, and the layers
    /// are left as they are sealed.
    #[must_use]
    pub fn into_executor(mut self) -> W {
        self.abandon_unsealed();
        self.executor
    }

    /// Whether a seal has come that is not carried out yet.
    #[must_use]
    pub fn has_seal_waiting(&self) -> bool {
        self.seal.is_some() || self.pending.is_some()
    }

    /// Sets whether gradients are sent although no worker keeps a copy.
    pub fn set_sends_gradients(&mut self, has_standby_peers: bool) {
        self.has_standby_peers = has_standby_peers;
    }

    /// Whether a gate has found a seal that is not carried out yet: state and open turn do not
    /// belong to each other until it is.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether the gradient of the open turn is complete and untouched (rule R1).
    #[must_use]
    pub fn has_frozen(&self) -> bool {
        self.half.is_reported() && self.pending.is_none()
    }

    /// Carries out what is sealed and drops what is not. The program cannot go on after this.
    pub fn abandon_unsealed(&mut self) {
        self.executor.drop_passes();
        self.carry_out_last();
        self.executor.drop_candidate();
    }

    /// What the stage computes with.
    #[must_use]
    pub fn executor(&self) -> &W {
        &self.executor
    }

    /// The program that runs, and the plan it belongs to.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.setup.plan
    }

    /// Handles an event from outside the stage.
    ///
    /// # Errors
    /// If it does not belong: it is dropped, and the engine stays as it was.
    pub fn handle(&mut self, event: Event) -> Result<(), EventRefusal> {
        match event {
            Event::Frame(frame) => {
                if !self.executor.has_chunk(frame.pass.chunk) {
                    return Err(BoundaryFrameRefusal::Elsewhere { pass: frame.pass }.into());
                }
                self.inbox.check(self.turn, &frame)?;
                let tensor = self.executor.receive(frame.tensor);
                self.inbox.put(Frame { tensor, ..frame });
                Ok(())
            }
            Event::Prefix(prefix) => {
                self.prefix = Some(prefix);
                Ok(())
            }
            Event::Seal(seal) => {
                self.half.check(&seal)?;
                self.seal = Some(seal);
                Ok(())
            }
            Event::Halt { after } => {
                let is_sooner = self.halt_after.is_none_or(|known| after < known);
                if is_sooner {
                    self.halt_after = Some(after);
                }
                Ok(())
            }
            Event::Partial(partial) => Ok(self.accept_partial(partial)?),
        }
    }

    /// The next output for the engine's owner to deliver, in order, until none is left. Nothing
    /// leaves a device that gave up: what it computed last may be anything, and would be taken for
    /// a bad step.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.executor.fault().is_some() {
            self.outbox.clear();
        }
        self.outbox.pop_front()
    }

    /// Runs the next operation, if everything it needs is there.
    pub fn run_next(&mut self) -> EngineProgress {
        let progress = self.run_phase().unwrap_or_else(EngineProgress::from);
        self.executor.fault().map_or(progress, EngineProgress::Faulted)
    }

    pub(super) fn run_phase(&mut self) -> Result<EngineProgress, Stop> {
        match &self.phase {
            EnginePhase::Program { cursor } => {
                let cursor = *cursor;
                self.drop_if_overruled().map_or_else(|| self.run_op(cursor), Ok)
            }
            EnginePhase::Settling => self.settle(),
            EnginePhase::Evaluating(_) => self.evaluate_next(),
            EnginePhase::Finished => Ok(EngineProgress::Finished),
        }
    }

    fn run_op(&mut self, cursor: usize) -> Result<EngineProgress, Stop> {
        let plan = &self.setup.plan;
        let Some(op) = plan.program.ops(self.stage).get(cursor).copied() else {
            return self.end_program();
        };
        let turn = self.turn;
        match op {
            Op::Compute(compute, pass) => self.run_pass(compute, pass)?,
            Op::Transfer(transfer, flow, pass) => self.run_transfer(transfer, flow, pass)?,
            Op::Update(update) => self.run_update(update)?,
            Op::Reduce(reduction, chunk) => self.run_reduction(reduction, chunk)?,
            Op::Memory(memory, pass) => self.run_memory(memory, pass)?,
        }
        self.executor.flush();
        // A gate may have moved the engine to another phase or turn; then it goes on there.
        if let EnginePhase::Program { cursor: now } = &mut self.phase
            && *now == cursor
            && self.turn == turn
        {
            *now += 1;
        }
        Ok(EngineProgress::Ran(EngineActivity::Op { turn, op }))
    }

    /// Begins the next step on the candidate, before its verdict is known.
    pub(super) fn go_ahead(&mut self) {
        let step = self.turn.step.next();
        self.begin(Turn { step, ..self.turn });
    }

    /// Begins a turn from the top of the program.
    pub(super) fn begin(&mut self, turn: Turn) {
        assert_eq!(self.executor.slots_in_use(), 0, "a turn begins with free slots");
        self.turn = turn;
        self.phase = EnginePhase::Program { cursor: 0 };
        self.losses.fill(None);
        self.inbox.forget_before(turn);
        self.partials.forget_before(turn);
    }

    /// Whether the run ends with `step`.
    pub(super) fn is_last(&self, step: Step) -> bool {
        step.0 + 1 >= self.setup.step_count || self.halt_after.is_some_and(|last| step >= last)
    }

    /// Whether nothing of the next step may run before `step` is sealed.
    pub(super) fn closes_after(&self, step: Step) -> bool {
        self.setup.plan.program.window == Some(Window::Zero)
            || self.is_last(step)
            || self.evaluates_after(step)
    }

    /// Whether the run is over.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, EnginePhase::Finished)
    }

    /// The turn that runs.
    #[must_use]
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Updates applied and sealed.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.half.updates()
    }

    pub(super) fn send_frame(
        &mut self,
        flow: Flow,
        pass: Pass,
        mode: PassMode,
        tensor: TensorHandle,
    ) {
        let to = self.setup.plan.placement().stage_of(pass.chunk);
        let to = to.expect("a chunk that is sent to stands somewhere");
        let frame = Frame { turn: self.turn, mode, flow, pass, tensor };
        self.outbox.push_back(Output::Frame { to, frame });
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
        Some(_) | None => EnginePhase::Program { cursor: 0 },
    }
}
